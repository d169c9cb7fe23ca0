"""Bytes per device and stage under a plan, and what of them is the tightest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from flexrlhf.core.names import Role, Stage
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.memory import (
    Bytes,
    generation_bytes,
    resting_bytes,
    score_bytes,
    train_bytes,
)
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.placed_role import PlacedRole

MEMORY_STAGES: Final[tuple[Stage, ...]] = ("generate", "score", "train", "sync")
_SYNC_BUCKET: Final = 1e8
"""Bytes of one bucket of weights on its way. Source: FlexRLHF's released code."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one stage needs on one device."""

    stage: Stage
    role: Role | None
    """The role at work; None where only resting bytes are held."""
    parts: Mapping[str, float]
    """What the bytes are for; resting weights and optimiser of every role on the device too."""
    total: float
    """All parts, the driver's share and the fragmentation allowance."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices that hold the same roles and have the same memory."""

    devices: tuple[int, ...]
    roles: tuple[Role, ...]
    memory_bytes: float
    resting: Mapping[str, float]
    """Per use and role, as in `actor weights`."""
    resting_bytes: float
    """All of them."""


class DeviceMemory:
    """The memory of every device under one placement.

    Args:
        cluster: the machines.
        roles: the placed roles.
        workload: lengths and batch.
        calibration: constants of the class of hardware and software.
        generation_samples: sequences of the generating role over all replicas at the same time.
    """

    def __init__(
        self,
        cluster: Cluster,
        roles: Sequence[PlacedRole],
        workload: Workload,
        calibration: Calibration,
        *,
        generation_samples: float,
    ) -> None:
        self._roles = {placed.role: placed for placed in roles}
        self._workload = workload
        self._calibration = calibration
        self._generation_samples = generation_samples
        self._needs: dict[tuple[int, Stage], Need] = {}
        self.kinds = tuple(_kinds(cluster, roles))

    def with_passes(self, roles: Sequence[PlacedRole], generation_samples: float) -> DeviceMemory:
        """Returns the memory of the same roles with other micro-batches and sequences at once."""
        changed = copy(self)
        changed._roles = {placed.role: placed for placed in roles}
        changed._generation_samples = generation_samples
        changed._needs = {}
        return changed

    def kinds_of(self, role: Role) -> list[DeviceKind]:
        """Returns the kinds of devices that hold `role`."""
        return [kind for kind in self.kinds if role in kind.roles]

    def need(self, kind: DeviceKind, stage: Stage) -> Need:
        """Returns what `stage` needs on a device of `kind`: the hungriest of its roles counts."""
        key = (kind.devices[0], stage)
        if key not in self._needs:
            self._needs[key] = self._hungriest(kind, stage)
        return self._needs[key]

    def _hungriest(self, kind: DeviceKind, stage: Stage) -> Need:
        found: tuple[float, Role | None, Bytes] = (self._total(kind, {}), None, {})
        for role in kind.roles:
            working = self.working_bytes(self._roles[role], stage)
            if working is not None and (total := self._total(kind, working)) > found[0]:
                found = (total, role, working)
        total, role, working = found
        parts = dict(kind.resting) | {f"{role} {use}": value for use, value in working.items()}
        return Need(stage, role, parts, total)

    def working_bytes(
        self, placed: PlacedRole, stage: Stage, *, samples: float | None = None
    ) -> Bytes | None:
        """Returns what a role adds while it is at work in `stage`; None where it has none there.

        Args:
            placed: the role.
            stage: generate, score, train or sync.
            samples: per replica and pass, or per replicas that share a sequence; what the placement
                says unless given.
        """
        if stage == "generate" and placed.engine is not None:
            return self._generating(placed, samples)
        if stage == "sync" and placed.engine is not None:
            copy = self._generating(placed, 0.0).get("engine weights", 0.0)
            buckets = min(2 * _SYNC_BUCKET, placed.model.weight_bytes)
            return {"engine weights": copy, "buckets": buckets}
        samples = samples or placed.micro_batch_samples
        tokens = samples * self._workload.longest_tokens / self._workload.sequence_split
        model, layout, alive = placed.model, placed.layout, self._workload.logit_tokens
        if stage == "score" and placed.scores:
            return score_bytes(model, layout, tokens=tokens, logit_tokens=alive)
        if stage == "train" and model.is_trained:
            return train_bytes(
                model, layout, tokens=tokens, logit_tokens=alive, calibration=self._calibration
            )
        return None

    def largest_samples(self, placed: PlacedRole, stage: Stage, *, fill: float, most: int) -> int:
        """Returns the most samples per replica and pass that fit everywhere; 0 if none does.

        Args:
            placed: the role.
            stage: the stage whose pass is meant.
            fill: share of a device's memory that may be used.
            most: not more than this.
        """
        kinds = self.kinds_of(placed.role)

        def fits(samples: int) -> bool:
            working = self.working_bytes(placed, stage, samples=samples) or {}
            return all(self._total(kind, working) <= fill * kind.memory_bytes for kind in kinds)

        return largest_fitting(fits, most)

    def _generating(self, placed: PlacedRole, samples: float | None) -> Bytes:
        assert placed.engine is not None
        at_once = self._generation_samples / placed.engine_replicas if samples is None else samples
        # A cache in pages holds what is there; one for a whole batch is as long as its longest.
        workload = self._workload
        is_paged = placed.engine.continuous and not placed.engine.copies_cache
        tokens = workload.mean_tokens if is_paged else workload.longest_tokens
        return generation_bytes(
            placed.model, placed.layout, placed.engine, samples=at_once, tokens=tokens
        )

    def _total(self, kind: DeviceKind, working: Mapping[str, float]) -> float:
        """Bytes with what a role's work adds, the driver's share and what is fragmented."""
        calibration = self._calibration
        needed = kind.resting_bytes + sum(working.values()) + calibration.held_bytes
        return needed * (1 + calibration.fragmentation)


def _kinds(cluster: Cluster, roles: Iterable[PlacedRole]) -> Iterable[DeviceKind]:
    held = {placed.role: placed for placed in roles}
    places = tuple((role, placed.devices) for role, placed in held.items())
    for names, memory, devices in alike_devices(cluster, places):
        resting = {
            f"{role} {use}": value
            for role in names
            for use, value in resting_bytes(held[role].model, held[role].layout).items()
        }
        yield DeviceKind(devices, names, memory, resting, sum(resting.values()))


@lru_cache(maxsize=1024)
def alike_devices(
    cluster: Cluster, places: tuple[tuple[Role, tuple[int, ...]], ...]
) -> tuple[tuple[tuple[Role, ...], float, tuple[int, ...]], ...]:
    """Returns devices that hold the same roles and have the same memory.

    Args:
        cluster: the machines.
        places: roles with their devices.

    Returns:
        Roles, bytes of memory, and devices.
    """
    on_device: dict[int, list[Role]] = defaultdict(list)
    for role, devices in places:
        for device in devices:
            on_device[device].append(role)
    alike: dict[tuple[tuple[Role, ...], float], list[int]] = defaultdict(list)
    for device, names in sorted(on_device.items()):
        memory = float(cluster.device_type(device).memory_bytes)
        alike[tuple(names), memory].append(device)
    return tuple((names, memory, tuple(held)) for (names, memory), held in alike.items())


def largest_fitting(fits: Callable[[int], bool], most: int) -> int:
    """Returns the largest count up to `most` that fits, where fitting only ever ends."""
    if most < 1 or not fits(1):
        return 0
    if fits(most):
        return most
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
