"""The worker of one device among many: a plain class that carries out tasks, transfers and calls.

It holds its parts of roles, serves what it made to its peers, and takes from them what it needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch

from flexrlhf.core.names import Role
from flexrlhf.learning.models.saving import write_model
from flexrlhf.learning.models.shards import whole_shards
from flexrlhf.learning.training.memory import peak_bytes, reset_peak
from flexrlhf.learning.transport.fetching import fetch
from flexrlhf.learning.transport.parcel import Parcel
from flexrlhf.learning.transport.server import ParcelServer
from flexrlhf.planning.workflow.graph import Graph, Operation, Task, Transfer
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.runtime.devices.device_launch import DeviceParts, build_parts
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.device_pairs import PREFIX as PAIRS
from flexrlhf.runtime.devices.exchange import PREFIX as EXPERIENCE
from flexrlhf.runtime.devices.own_device import take_device, wait_for_kernels
from flexrlhf.runtime.devices.process_groups import join_world, leave_world
from flexrlhf.runtime.devices.saved_experience import (
    damaged_experience,
    load_experience,
    places_of,
    save_experience,
)
from flexrlhf.runtime.devices.weight_sync import PREFIX as WEIGHTS
from flexrlhf.runtime.devices.weight_sync import WeightSync
from flexrlhf.runtime.devices.work_order import Meeting, WorkOrder
from flexrlhf.runtime.evaluation import answer_metrics
from flexrlhf.runtime.measurements import Measurement, Measurements
from flexrlhf.runtime.records import sample_row
from flexrlhf.runtime.ruined_weights import refuse_unusable
from flexrlhf.runtime.telemetry import RoleBytes

_TRAINING: Final[frozenset[Operation]] = frozenset({"forward_backward", "optimizer_step"})
_SYNC: Final[frozenset[Operation]] = frozenset({"publish", "install"})


class DeviceWorker:
    """One device of a run.

    Args:
        order: the run.
        rank: this worker.
        host: address of this machine on which peers reach it; None: only those on this machine.
    """

    def __init__(self, order: WorkOrder, rank: int, host: str | None) -> None:
        self.order = order
        self.rank = rank
        self.device_map = DeviceMap(order.plan, order.spec, order.speeds)
        self._server = ParcelServer(host, order.secret)
        self._iteration: int | None = None
        self._parts: DeviceParts | None = None
        self._weights: WeightSync | None = None
        self._graph = lru_cache(maxsize=4)(self._graph_of)

    @property
    def address(self) -> str:
        """Where peers ask for parcels."""
        return self._server.address

    def join(self, meeting: Meeting) -> None:
        """Meets the other workers and loads this one's roles; all of them do so together."""
        config = self.order.config
        self._addresses = meeting.addresses
        kind = self.order.device
        device = take_device(kind)
        join_world(meeting, self.rank, deadline_s=config.run.task_deadline_s, device=kind)
        self._weights = WeightSync(self.device_map, self.rank, self._addresses, self._ask_address)
        self._parts = build_parts(self.order, self.device_map, self.rank, self._ask, device)
        self._sync.hold(self._parts.held)
        self._server.offer(EXPERIENCE, self._parts.exchange.handle)
        if self._parts.pairs is not None:
            self._server.offer(PAIRS, self._parts.pairs.handle)
        self._server.offer(WEIGHTS, self._sync.handle)

    @property
    def parts(self) -> DeviceParts:
        """What this worker is made of, once it has joined."""
        assert self._parts is not None, "the worker has not joined the others"
        return self._parts

    @property
    def _sync(self) -> WeightSync:
        assert self._weights is not None, "the worker has not joined the others"
        return self._weights

    def run(self, task: Task) -> Measurements:
        """Carries out this worker's part of one task and returns what it measured."""
        parts = self.parts
        if self._iteration is None or task.iteration > self._iteration:
            self._iteration = task.iteration
            reset_peak(parts.device)
        measured = self._carry_out(task, parts)
        wait_for_kernels(parts.device)
        return measured

    def _carry_out(self, task: Task, parts: DeviceParts) -> Measurements:
        if task.operation in _SYNC:
            return self._sync.run(task)
        if task.operation in _TRAINING:
            assert task.role is not None, "training is a role's"
            if task.operation == "optimizer_step":
                self._sync.protect(task.role)
            measured = parts.steps.run(task)
            return measured if self.rank == self.device_map.ranks(task.role)[0] else {}
        measured = parts.source.run(task)
        if task.operation == "prepare" and self.rank != self.device_map.group_ranks(task.group)[0]:
            return {}
        return measured

    def prefetch(self, transfer: Transfer) -> None:
        """Takes over what a transfer brings, beside whatever else goes on here."""
        if transfer.kind == "weights":
            self._sync.prefetch(transfer)
        elif self.parts.shared is not None:
            tasks = {task.name: task for task in self._graph(transfer.iteration).tasks}
            self.parts.shared.prefetch(
                transfer,
                [tasks[name] for name in transfer.sources],
                [tasks[name] for name in transfer.targets],
            )

    def finish(self, iteration: int) -> None:
        """Drops what was made in an iteration."""
        if self.parts.shared is not None:
            self.parts.shared.forget(iteration)
        self._sync.retire(iteration + 1)

    def first_samples(self, iteration: int, count: int) -> list[dict[str, Any]]:
        """Returns rows of an iteration's first answers, from the barrier's first worker."""
        rollouts = self.parts.rollouts
        if rollouts is None or not rollouts.is_barrier:
            return []
        return [sample_row(sample) for sample in rollouts.first_of(iteration)[:count]]

    def answer_held_out(self) -> None:
        """Answers held-out prompts where this worker generates; scores held-out pairs."""
        if self.parts.shared is not None:
            self.parts.shared.answer_held_out()

    def judge_held_out(self, count: int) -> tuple[Measurements, list[dict[str, Any]]]:
        """Returns `eval/*` of this worker's share of held-out rows, and rows of answers."""
        parts = self.parts
        if parts.rollouts is None:
            if parts.evaluate is None:  # it holds frozen roles alone
                return {}, []
            metrics, _ = parts.evaluate()
            is_first = self.rank == self.device_map.ranks(self.order.spec.trained[0])[0]
            return {n: Measurement(v) for n, v in metrics.items()} if is_first else {}, []
        samples = parts.rollouts.judge_held_out()
        return answer_metrics(samples), [sample_row(sample) for sample in samples[:count]]

    def save(self, folder: Path, done: Mapping[int, Sequence[str]]) -> None:
        """Writes this worker's part of every trained role, and what it generated ahead.

        Args:
            folder: of the checkpoint.
            done: tasks that were done of iterations that are not finished, by name.

        Raises:
            RunFailed: the last step left a weight that nothing can be computed with.
        """
        for role, trainer in self.parts.held.trainers.items():
            refuse_unusable(role, self.parts.held.models[role].shards())
            trainer.backend.save_shard(folder / role)
        if done and self.parts.rollouts is not None:
            tasks = [
                t for k, names in done.items() for t in self._graph(k).tasks if t.name in names
            ]
            state = self.parts.exchange.state(tasks)
            save_experience(folder, self.rank, state, self._places)

    def load_experience(self, folder: Path) -> None:
        """Takes back what this worker had generated and scored ahead of a checkpoint.

        Raises:
            CheckpointError: it cannot be read, or other workers had done it.
        """
        state = load_experience(folder, self.rank, self._places)
        try:
            self.parts.exchange.restore(state)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise damaged_experience(folder, self.rank, error) from error

    @property
    def _places(self) -> dict[str, list[int]]:
        return places_of(self.device_map, self.order.shape.rollout_micro_batches)

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote."""
        for role, trainer in self.parts.held.trainers.items():
            trainer.backend.load_shard(folder / role)

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint must hold besides weights and optimisers, as JSON values."""
        return self.parts.source.state()

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Raises:
            CheckpointError: it is not what this algorithm returns.
        """
        self.parts.source.restore_state(state)

    def offer_weights(self, version: int) -> None:
        """Lets others have the trained weights of this worker."""
        self._sync.offer(version)

    def take_weights(self, version: int) -> None:
        """Installs the weights that `offer_weights` offers, wherever a copy serves."""
        self._sync.take(version)

    def write_models(self, folder: Path) -> None:
        """Writes whole models of all trained roles, if this is the first worker.

        It alone does so because transformers writes nothing in any other process of a world.
        """
        if self.rank != 0:
            return
        for role in self.order.spec.trained:
            whole = self.parts.loader.load(role, torch.device("cpu"), trains=False)
            targets = whole_shards(whole)
            self._sync.fill(role, targets)
            refuse_unusable(role, targets)
            (folder / role).mkdir()
            write_model(whole, self.parts.loader.tokenizer, folder / role)

    def role_bytes(self) -> dict[Role, RoleBytes]:
        """Returns the memory that each role holds here all the time."""
        held = self.parts.held
        copies = {} if held.engine_copy is None else {self.device_map.generating: held.engine_copy}
        found: dict[Role, RoleBytes] = {}
        for role, model in held.models.items():
            trainer = held.trainers.get(role)
            models = [model, *([copies[role]] if role in copies else [])]
            found[role] = RoleBytes(
                sum(shard.tensor.nbytes for one in models for shard in one.shards().values()),
                trainer.backend.optimizer_bytes() if trainer is not None else 0,
            )
        return found

    def peak_bytes(self) -> int:
        """Returns the most memory held in the iteration in progress."""
        return peak_bytes(self.parts.device)

    def standing(self) -> str:
        """Returns the version of this worker's weights and what experience is here, in words."""
        if self._parts is None:
            return "no weights yet"
        engine, rollouts = self._parts.held.engine, self._parts.rollouts
        words = "no engine here" if engine is None else f"engine's weights {engine.weight_version}"
        held = {} if rollouts is None else rollouts.exchange.held()
        counts = [f"{count} answers of iteration {i + 1}" for i, count in sorted(held.items())]
        return f"{words}; holds {', '.join(counts) or 'no answers'}"

    def close(self) -> None:
        """Leaves the others and lets go of everything."""
        self._server.close()
        self._parts = self._weights = None  # models would keep their process groups alive
        leave_world()

    def _graph_of(self, iteration: int) -> Graph:
        order = self.order
        return iteration_graph(order.spec, order.plan, order.shape, iteration)

    def _ask(self, rank: int, key: str, query: Mapping[str, Any]) -> Parcel:
        return self._ask_address(self._addresses[rank], key, query)

    def _ask_address(
        self, address: str, key: str, query: Mapping[str, Any], *, at_most_s: float = math.inf
    ) -> Parcel:
        deadline_s = min(at_most_s, self.order.config.run.task_deadline_s)
        return fetch(address, self.order.secret, key, query, deadline_s=deadline_s)
