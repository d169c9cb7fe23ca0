"""One worker's part in moving weights: it offers what it trains, and pulls what it serves with."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import torch.distributed as dist

from flexrlhf.core.names import Role
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.weights.asking import Answer
from flexrlhf.learning.weights.pulling import pull
from flexrlhf.learning.weights.receipt import Receipt
from flexrlhf.learning.weights.relay import RELAY_PREFIX, Relay
from flexrlhf.learning.weights.sharing import WAIT_S, Sharing
from flexrlhf.learning.weights.staging import Staged
from flexrlhf.learning.weights.store import WeightAnswer, WeightStore
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.held_roles import HeldRoles, ServedWeights
from flexrlhf.runtime.measurements import Measurement, Measurements

PREFIX: Final = "weights"
_OFFERED: Final = "offered/"
"""Weights that are offered outside of iterations go by a name of their own."""
_SHARERS: Final = 16
"""Workers that share what they pull: each asks all of them what they take."""
_PEER_DEADLINE_S: Final = 5 * WAIT_S
"""For an answer of a peer; what it does not give is taken from those that train the role."""


class AskBefore(Protocol):
    """Asks the worker at an address, as `Ask` does, and gives up in time."""

    def __call__(
        self, address: str, key: str, query: Mapping[str, Any], *, at_most_s: float = ...
    ) -> Answer:
        """Returns the answer; raises a FlexError at the run's deadline, or after `at_most_s`."""
        ...


logger = logging.getLogger(__name__)


class WeightSync:
    """The weights of one worker on their way.

    Args:
        device_map: who holds what.
        rank: this worker.
        addresses: of all workers.
        ask: asks the worker at an address; takes the most seconds that it may take.
    """

    def __init__(
        self, device_map: DeviceMap, rank: int, addresses: Sequence[str], ask: AskBefore
    ) -> None:
        self._map = device_map
        self._rank = rank
        self._addresses = addresses
        self._ask = ask
        self._store = WeightStore()
        self._relay = Relay()
        self._held = HeldRoles()
        self._lock = threading.Lock()
        self._staged: dict[tuple[str, int], Staged] = {}
        """What a transfer brought and no task has installed yet."""
        self._offers = 0
        self._served: tuple[str, ...] = ()

    def hold(self, held: HeldRoles) -> None:
        """Says which weights this worker trains, and with which it serves."""
        self._held = held
        served_weights = held.served(self._map)
        self._served = tuple(served.name for served in served_weights)
        for served in served_weights:
            for name in (served.name, _OFFERED + served.name):
                self._relay.want(name, served.shards)

    def handle(self, key: str, query: Mapping[str, Any]) -> WeightAnswer:
        """Answers a peer that pulls."""
        return (self._relay if key.startswith(RELAY_PREFIX) else self._store).handle(key, query)

    def run(self, task: Task) -> Measurements:
        """Publishes or installs the version that a task names."""
        assert task.weight_version is not None, "weights have versions"
        if task.operation == "publish":
            self._publish(task.group, task.weight_version)
            return {}
        return self._install(task.group, task.weight_version)

    def prefetch(self, transfer: Transfer) -> None:
        """Pulls a version beside whatever goes on here; a task installs it later."""
        version = transfer.iteration + 1
        for served in self._held.served(self._map):
            if served.source in transfer.roles:
                staged = self._pull_shared(served, version)
                with self._lock:
                    self._staged[served.name, version] = staged

    def protect(self, role: Role) -> None:
        """Keeps published versions of a role readable while its weights are written."""
        self._store.protect(role)
        self._store.protect(_OFFERED + role)

    def retire(self, version: int) -> None:
        """Lets go of versions that nobody will ask for any more."""
        for name in (*self._held.trainers, *self._served):
            self._store.retire(name, version)

    def offer(self, version: int) -> None:  # noqa: ARG002 - offers are numbered on their own
        """Lets others have the trained weights as they are, outside of any iteration."""
        self._offers += 1
        for role in self._held.trainers:
            name = _OFFERED + role
            self._store.retire(name, self._offers - 1)
            self._store.publish(name, self._offers, self._held.models[role].shards())

    def take(self, version: int) -> None:
        """Installs what is offered, wherever a copy serves here, as `version`."""
        for served in self._held.served(self._map):
            self._store.protect(served.name)
            self._pull_shared(served, self._offers, prefix=_OFFERED).install()
            self._relay.end(_OFFERED + served.name, self._offers)
        self._set_version(version, self._map.group_of(self._map.generating))

    def fill(self, role: Role, targets: Mapping[str, Shard]) -> Receipt:
        """Writes the offered weights of a role into `targets`."""
        return self._pull(role, self._offers, targets, prefix=_OFFERED).install()

    def _publish(self, group: str, version: int) -> None:
        """Publishes what the group trained; others of this worker's groups may not be done yet."""
        for role in self._held.trainers:
            is_trained = self._map.group_of(role) == group
            if is_trained and version not in self._store.versions(role):
                self._store.publish(role, version, self._held.models[role].shards())

    def _install(self, group: str, version: int) -> Measurements:
        """Installs what the group serves with; others of this worker's groups have their own."""
        receipts = [
            self._installed(served, version)
            for served in self._held.served(self._map)
            if self._map.group_of(served.role) == group
        ]
        self._set_version(version, group)
        measured = {"weights/version": Measurement(version, reduction="max")}
        if receipts:
            measured["weights/bytes"] = Measurement(
                sum(receipt.num_bytes for receipt in receipts), reduction="max"
            )
        for receipt in receipts:
            logger.info("worker %d installed %s", self._rank, receipt.to_json())
        return measured

    def _installed(self, served: ServedWeights, version: int) -> Receipt:
        """Installs what was pulled before, or pulls it from the workers of this very group.

        From then on this worker gives the version to others, as those do that trained it.
        """
        with self._lock:
            staged = self._staged.pop((served.name, version), None)
        if staged is None:
            self._publish(self._map.group_of(served.source), version)
            mesh = self._held.models[served.source].mesh
            assert mesh is not None, "workers split every role by a mesh"
            dist.barrier(mesh.group)  # all of them offer the version before anyone asks
            staged = self._pull(served.source, version, served.shards)
        self._store.protect(served.name)
        receipt = staged.install()
        self._store.publish(served.name, version, served.shards)
        self._relay.end(served.name, version)
        return receipt

    def _pull(
        self, role: Role, version: int, targets: Mapping[str, Shard], *, prefix: str = ""
    ) -> Staged:
        return pull(prefix + role, version, targets, self._sources(role), self._ask)

    def _pull_shared(self, served: ServedWeights, version: int, *, prefix: str = "") -> Staged:
        """Pulls beside the others that serve with these weights: each gives a part to the rest."""
        sources = self._sources(served.source)
        own = self._addresses[self._rank]
        first = served.ranks.index(self._rank) // _SHARERS * _SHARERS
        near = [self._addresses[rank] for rank in served.ranks[first : first + _SHARERS]]
        place = near.index(own)
        sharing = Sharing(
            prefix + served.name,
            own,
            [peer for peer in (*near[place + 1 :], *near[:place]) if peer not in sources],
            self._relay,
            partial(self._ask, at_most_s=_PEER_DEADLINE_S),
        )
        return pull(
            prefix + served.source, version, served.shards, sources, self._ask, sharing=sharing
        )

    def _sources(self, role: Role) -> list[str]:
        """Returns the workers that train a role, in an order unlike that of others."""
        ranks = self._map.ranks(role)
        turn = self._rank % len(ranks)
        return [self._addresses[rank] for rank in (*ranks[turn:], *ranks[:turn])]

    def _set_version(self, version: int, group: str) -> None:
        for model in self._held.models.values():
            model.weights_changed()
        if self._held.engine_copy is not None:
            self._held.engine_copy.weights_changed()
        if self._held.engine is not None and self._map.group_of(self._map.generating) == group:
            self._held.engine.load_weights((), version)
