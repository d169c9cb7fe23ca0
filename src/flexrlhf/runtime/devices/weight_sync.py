"""One worker's part in moving weights: it offers what it trains, and pulls what it serves with."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch.distributed as dist

from flexrlhf.core.names import Role
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.weights.asking import Ask
from flexrlhf.learning.weights.pulling import pull
from flexrlhf.learning.weights.receipt import Receipt
from flexrlhf.learning.weights.staging import Staged
from flexrlhf.learning.weights.store import WeightAnswer, WeightStore
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.held_roles import HeldRoles
from flexrlhf.runtime.measurements import Measurement, Measurements

PREFIX: Final = "weights"
_OFFERED: Final = "offered/"
"""Weights that are offered outside of iterations go by a name of their own."""

logger = logging.getLogger(__name__)


class WeightSync:
    """The weights of one worker on their way.

    Args:
        device_map: who holds what.
        rank: this worker.
        addresses: of all workers.
        ask: asks the worker at an address.
    """

    def __init__(
        self, device_map: DeviceMap, rank: int, addresses: Sequence[str], ask: Ask
    ) -> None:
        self._map = device_map
        self._rank = rank
        self._addresses = addresses
        self._ask = ask
        self._store = WeightStore()
        self._held = HeldRoles()
        self._lock = threading.Lock()
        self._staged: dict[tuple[Role, int], list[Staged]] = {}
        """What a transfer brought and no task has installed yet."""
        self._offers = 0

    def hold(self, held: HeldRoles) -> None:
        """Says which weights this worker trains, and with which it serves."""
        self._held = held

    def handle(self, key: str, query: Mapping[str, Any]) -> WeightAnswer:
        """Answers a peer that pulls."""
        return self._store.handle(key, query)

    def run(self, task: Task) -> Measurements:
        """Publishes or installs the version that a task names."""
        assert task.weight_version is not None, "weights have versions"
        if task.operation == "publish":
            self._publish(task.weight_version)
            return {}
        return self._install(task.weight_version)

    def prefetch(self, transfer: Transfer) -> None:
        """Pulls a version beside whatever goes on here; a task installs it later."""
        version = transfer.iteration + 1
        targets = self._held.installed(self._map)
        for role in transfer.roles:
            if role in targets:
                staged = [self._pull(role, version, target) for target in targets[role]]
                with self._lock:
                    self._staged[role, version] = staged

    def protect(self, role: Role) -> None:
        """Keeps published versions of a role readable while its weights are written."""
        self._store.protect(role)
        self._store.protect(_OFFERED + role)

    def retire(self, version: int) -> None:
        """Lets go of versions that nobody will ask for any more."""
        for role in self._held.trainers:
            self._store.retire(role, version)

    def offer(self, version: int) -> None:  # noqa: ARG002 - offers are numbered on their own
        """Lets others have the trained weights as they are, outside of any iteration."""
        self._offers += 1
        for role in self._held.trainers:
            name = _OFFERED + role
            self._store.retire(name, self._offers - 1)
            self._store.publish(name, self._offers, self._held.models[role].shards())

    def take(self, version: int) -> None:
        """Installs what is offered, wherever a copy serves here, as `version`."""
        for role, targets in self._held.installed(self._map).items():
            for target in targets:
                self.fill(role, target)
        self._set_version(version)

    def fill(self, role: Role, targets: Mapping[str, Shard]) -> Receipt:
        """Writes the offered weights of a role into `targets`."""
        return self._pull(role, self._offers, targets, prefix=_OFFERED).install()

    def _publish(self, version: int) -> None:
        for role in self._held.trainers:
            if version not in self._store.versions(role):
                self._store.publish(role, version, self._held.models[role].shards())

    def _install(self, version: int) -> Measurements:
        targets = self._held.installed(self._map)
        receipts = [
            receipt for role in targets for receipt in self._installed(role, version, targets[role])
        ]
        self._set_version(version)
        measured = {"weights/version": Measurement(version, reduction="max")}
        if receipts:
            measured["weights/bytes"] = Measurement(
                sum(receipt.num_bytes for receipt in receipts), reduction="max"
            )
        for receipt in receipts:
            logger.info("worker %d installed %s", self._rank, receipt.to_json())
        return measured

    def _installed(
        self, role: Role, version: int, targets: Sequence[Mapping[str, Shard]]
    ) -> list[Receipt]:
        """Installs what was pulled before, or pulls it from the workers of this very group."""
        with self._lock:
            staged = self._staged.pop((role, version), None)
        if staged is None:
            self._publish(version)
            mesh = self._held.models[role].mesh
            assert mesh is not None, "workers split every role by a mesh"
            dist.barrier(mesh.group)  # all of them offer the version before anyone asks
            staged = [self._pull(role, version, target) for target in targets]
        return [one.install() for one in staged]

    def _pull(
        self, role: Role, version: int, targets: Mapping[str, Shard], *, prefix: str = ""
    ) -> Staged:
        ranks = self._map.ranks(role)
        turn = self._rank % len(ranks)
        sources = [self._addresses[rank] for rank in (*ranks[turn:], *ranks[:turn])]
        return pull(prefix + role, version, targets, sources, self._ask)

    def _set_version(self, version: int) -> None:
        for model in self._held.models.values():
            model.weights_changed()
        if self._held.engine_copy is not None:
            self._held.engine_copy.weights_changed()
        if self._held.engine is not None:
            self._held.engine.load_weights((), version)
