"""What one device does: carries out the tasks of a graph on the roles and samples that it holds.

A plain class: no process, no Ray, no scheduler. A task goes by its operation to the source of the
items or to the training on them; samples stay here, and only small reports go back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from flexrlhf.core.names import Role
from flexrlhf.learning.models.saving import write_model
from flexrlhf.learning.models.shards import whole_shards
from flexrlhf.learning.training.memory import peak_bytes, reset_peak
from flexrlhf.learning.training.step import RoleTrainer
from flexrlhf.planning.workflow.graph import Operation, Task
from flexrlhf.runtime.devices.own_device import wait_for_kernels
from flexrlhf.runtime.evaluation import EvaluationResult
from flexrlhf.runtime.item_source import ItemSource
from flexrlhf.runtime.measurements import Measurement, Measurements
from flexrlhf.runtime.mini_batch_steps import MiniBatchSteps
from flexrlhf.runtime.records import sample_row
from flexrlhf.runtime.ruined_weights import refuse_unusable
from flexrlhf.runtime.telemetry import RoleBytes

_TRAINING: Final[frozenset[Operation]] = frozenset({"forward_backward", "optimizer_step"})


class Worker:
    """Holds roles of one device and runs tasks on them.

    Args:
        models: every role's module.
        trainers: trained roles.
        source: makes the items that an iteration trains on.
        steps: trains on them.
        evaluate: looks at the held-out rows, where the run has any.
        tokenizer: goes into the folders of finished models.
    """

    def __init__(
        self,
        models: Mapping[Role, nn.Module],
        trainers: Mapping[Role, RoleTrainer],
        source: ItemSource,
        steps: MiniBatchSteps,
        *,
        tokenizer: PreTrainedTokenizerBase,
        evaluate: Callable[[], EvaluationResult] | None = None,
    ) -> None:
        self.models = models
        self.trainers = trainers
        self.source = source
        self.steps = steps
        self.evaluate = evaluate
        self.tokenizer = tokenizer
        self._iteration: int | None = None

    def run(self, task: Task) -> Measurements:
        """Carries out one task and returns what it measured."""
        if task.iteration != self._iteration:
            self._iteration = task.iteration
            reset_peak(self.device)
        work = self.steps if task.operation in _TRAINING else self.source
        measured = work.run(task)
        wait_for_kernels(self.device)
        return measured

    def first_samples(
        self,
        iteration: int,  # noqa: ARG002 - only the one at hand is here
        count: int,
    ) -> list[dict[str, Any]]:
        """Returns the rows of `samples.jsonl` for the first answers of the iteration at hand."""
        return [sample_row(sample) for sample in self.source.samples[:count]]

    @property
    def device(self) -> torch.device:
        """The device of this worker."""
        return next(next(iter(self.models.values())).parameters()).device

    def answer_held_out(self) -> None:
        """Does nothing: on one device `judge_held_out` answers too."""

    def judge_held_out(self, count: int) -> tuple[Measurements, list[dict[str, Any]]]:
        """Returns metrics `eval/*` of the held-out rows, and the rows of the first answers."""
        assert self.evaluate is not None, "the loop asks only where there are held-out rows"
        metrics, samples = self.evaluate()
        measured = {name: Measurement(value) for name, value in metrics.items()}
        return measured, [sample_row(sample) for sample in samples[:count]]

    def save(
        self,
        folder: Path,
        done: Mapping[int, Sequence[str]],  # noqa: ARG002 - one device generates nothing ahead
    ) -> None:
        """Writes every trained role's shard into a folder of its own.

        Raises:
            RunFailed: the last step left a weight that nothing can be computed with.
        """
        for role, trainer in self.trainers.items():
            refuse_unusable(role, whole_shards(trainer.backend.model))
            trainer.backend.save_shard(folder / role)

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote."""
        for role, trainer in self.trainers.items():
            trainer.backend.load_shard(folder / role)

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint must hold besides weights and optimisers, as JSON values."""
        return self.source.state()

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Raises:
            CheckpointError: it is not what this algorithm returns.
        """
        self.source.restore_state(state)

    def offer_weights(self, version: int) -> None:
        """Does nothing: the engine reads the trained weights themselves."""

    def take_weights(self, version: int) -> None:
        """Tells the engine which version its weights are."""
        self.source.take_weights(version)

    def write_models(self, folder: Path) -> None:
        """Writes the trained roles as Hugging Face folders into `folder`."""
        for role, trainer in self.trainers.items():
            (folder / role).mkdir()
            write_model(trainer.backend.model, self.tokenizer, folder / role)

    def role_bytes(self) -> dict[Role, RoleBytes]:
        """Returns the memory that each role holds all the time."""
        return {
            role: RoleBytes(
                sum(p.numel() * p.element_size() for p in model.parameters()),
                self.trainers[role].backend.optimizer_bytes() if role in self.trainers else 0,
            )
            for role, model in self.models.items()
        }

    def peak_bytes(self) -> int:
        """Returns the most memory held in the iteration in progress."""
        return peak_bytes(self.device)
