"""Training on the items of an iteration: gradients of micro-batches and optimiser steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flexrlhf.core.algorithm_specs import DataKind
from flexrlhf.core.names import Role
from flexrlhf.learning.data.collation import COLLATE
from flexrlhf.learning.training.step import RoleTrainer
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.runtime.item_source import ItemSource
from flexrlhf.runtime.measurements import Measurement, Measurements
from flexrlhf.runtime.micro_batch_limit import MicroBatchLimit
from flexrlhf.runtime.mini_batches import MiniBatch, cut_mini_batch, permutation


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How an iteration's items are cut into steps."""

    seed: int
    num_mini_batches: int
    limit: MicroBatchLimit
    max_answer_tokens: int
    speeds: Mapping[Role, tuple[float, ...]] = field(default_factory=dict[Role, tuple[float, ...]])
    """Of each role's replicas, where they share a step by speed."""


class MiniBatchSteps:
    """Carries out the training tasks of one device.

    Args:
        data: the kind of the items.
        settings: how they are cut.
        trainers: trained roles.
        source: has the items of the iteration in progress.
    """

    def __init__(
        self,
        data: DataKind,
        settings: StepSettings,
        trainers: Mapping[Role, RoleTrainer],
        source: ItemSource,
    ) -> None:
        self.settings = settings
        self._collate = COLLATE[data]
        self._trainers = trainers
        self._source = source
        self._cut: dict[tuple[int, int, int, int, tuple[float, ...]], MiniBatch] = {}
        """Mini-batches of one iteration, by iteration, epoch, number, replicas and their speeds."""

    def run(self, task: Task) -> Measurements:
        """Carries out one task and returns what it measured."""
        match task:
            case Task(
                operation="forward_backward",
                role=str(role),
                epoch=int(epoch),
                mini_batch=int(number),
                micro_batch=int(index),
            ):
                self._accumulate(role, self._mini_batch(role, task.iteration, epoch, number), index)
                return {}
            case Task(
                operation="optimizer_step",
                role=str(role),
                epoch=int(epoch),
                mini_batch=int(number),
            ):
                mini_batch = self._mini_batch(role, task.iteration, epoch, number)
                metrics = self._trainers[role].step(mini_batch.counts)
                return {name: Measurement(value) for name, value in metrics.items()}
            case _:
                raise ValueError(f"No work of training: {task}.")

    def _accumulate(self, role: Role, mini_batch: MiniBatch, index: int) -> None:
        trainer = self._trainers[role]
        items = mini_batch.micro_batch(index, trainer.backend.replica)
        if items:
            batch = self._collate(items, trainer.objective.fields)
            trainer.accumulate(batch.to(trainer.backend.device), mini_batch.counts)
        elif index < mini_batch.num_passes:
            trainer.accumulate_nothing()
        if index == mini_batch.num_passes - 1:
            trainer.run_waiting()

    def _mini_batch(self, role: Role, iteration: int, epoch: int, number: int) -> MiniBatch:
        num_replicas = self._trainers[role].backend.num_replicas
        speeds = self.settings.speeds.get(role, ())
        key = (iteration, epoch, number, num_replicas, speeds)
        if key not in self._cut:
            self._cut = {other: cut for other, cut in self._cut.items() if other[0] == iteration}
            items = self._source.items_of(iteration)
            self._cut[key] = cut_mini_batch(
                items,
                permutation(len(items), seed=self.settings.seed, iteration=iteration, epoch=epoch),
                number,
                self.settings.num_mini_batches,
                limit=self.settings.limit,
                max_answer_tokens=self.settings.max_answer_tokens,
                num_replicas=num_replicas,
                speeds=speeds,
            )
        return self._cut[key]
