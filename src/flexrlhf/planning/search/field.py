"""What the plans of one arrangement have in common, and the choices that make them up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

from flexrlhf.core.names import GenerationMode, Role, Stage
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.placement.runnable import obstacle
from flexrlhf.planning.search.bounds import IterationBound, Times, WeightSync
from flexrlhf.planning.search.combinations import (
    Combination,
    Combinations,
    candidates,
    shared_devices,
)
from flexrlhf.planning.search.evaluation import graph_source, iteration_shape
from flexrlhf.planning.search.options import Option, RoleOptions
from flexrlhf.planning.search.pools import PoolFront, pools_of
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.workflow.transfer_seconds import TransferSeconds

_Key = tuple[Role, tuple[int, ...], tuple[tuple[str, Any], ...], GenerationMode | None, bool, int]


@dataclass(frozen=True, slots=True)
class Cuts:
    """How a rollout is cut, and how often new weights reach what generates."""

    parts: int = 1
    sync_every: int = 1


@dataclass(slots=True)
class Known:
    """What was found in other arrangements."""

    options: dict[_Key, list[Option]] = field(default_factory=dict[_Key, list[Option]])
    fronts: dict[tuple[_Key, ...], PoolFront] = field(
        default_factory=dict[tuple[_Key, ...], PoolFront]
    )


class Field:
    """What combinations of one arrangement have in common."""

    def __init__(
        self,
        request: PlanRequest,
        arrangement: Arrangement,
        cuts: Cuts,
        *,
        known: Known,
    ) -> None:
        self.cuts = cuts
        self._request = request
        self.arrangement = arrangement
        plan = bare_plan(arrangement, cuts)
        self._shape = iteration_shape(request, plan)
        self.graph_of = graph_source(request, plan, self._shape)
        finder = RoleOptions(request, arrangement, self.graph_of(0), self._shape)
        self._known = known
        self._options: dict[Role, list[Option]] = {}
        for role in arrangement.devices:
            key = self._key(role)
            if key not in known.options:
                known.options[key] = finder.of(role)
            self._options[role] = known.options[key]
        self.pools = pools_of(arrangement.devices)
        self.least: Combination | None = None
        self._shared = shared_devices(
            request.cluster, arrangement.devices, request.calibration, fill=request.memory_fill
        )
        self.bound = IterationBound(
            [devices.roles for devices in self._shared],
            arrangement.generating_role,
            cuts.parts,
            overlaps=self._shape.num_in_flight > 1,
            syncs=self._syncs(),
        )
        self.fastest = self._fastest()

    def _syncs(self) -> list[WeightSync]:
        """The transfers of weights, as if each were alone on its links."""
        request, graph = self._request, self.graph_of(0)
        times = TransferSeconds(
            request.cluster,
            graph,
            request.models,
            takes_buckets=request.engine.takes_buckets,
            shape=self._shape,
            workload=request.workload,
            calibration=request.calibration,
        )
        return [
            WeightSync(transfer.roles, times.of(transfer).alone_s(times.links))
            for transfer in graph.transfers
            if transfer.kind == "weights"
        ]

    def _fastest(self) -> Times:
        """What each role takes in each stage at least, beside the leanest of the others."""
        found: dict[tuple[Role, Stage], float] = {}
        for role, held in candidates(self._options, self._shared).items():
            if not held:
                found[role, "train"] = math.inf
            for task in held[0].stage_s if held else ():
                found[task] = min(candidate.stage_s[task] for candidate in held)
        return found

    def floor_s(self, parts: int) -> float:
        """Returns the seconds that no iteration of so many parts beats; infinite: nothing fits."""
        return replace(self.bound, num_parts=parts).seconds(self.fastest)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Every role that has a place."""
        return tuple(self._options)

    @property
    def options(self) -> Mapping[Role, Sequence[Option]]:
        """Every way to split each role."""
        return self._options

    @property
    def num_combinations(self) -> int:
        """How many plans there are, those that the bounds rule out unseen among them."""
        return prod(map(len, self._options.values()))

    @property
    def has_room(self) -> bool:
        """Whether every combination fits with the largest passes, so that memory rules out none."""
        for devices in self._shared:
            held = [self._options[role] for role in devices.roles]
            resting = sum(max((o.resting_bytes for o in options), default=0.0) for options in held)
            added = (o.most_bytes - o.resting_bytes for options in held for o in options)
            if resting + max(added, default=0.0) > devices.limit_bytes:
                return False
        return True

    def combinations(self) -> Combinations:
        """Returns all combinations, best bound first."""
        return Combinations(self._options, self._shared, self.bound)

    def every_combination(self) -> Iterator[tuple[Option, ...]]:
        """Returns all there are, in no order: for checks of the bounds."""
        return product(*self._options.values())

    def front(self, pool: Sequence[Role]) -> PoolFront:
        """Returns the choices of a pool: one front for all arrangements that have the pool."""
        key = tuple(self._key(role) for role in pool)
        if key not in self._known.fronts:
            shared = [devices for devices in self._shared if set(devices.roles) <= set(pool)]
            options: dict[Role, list[Option]] = {role: self._options[role] for role in pool}
            self._known.fronts[key] = PoolFront(
                Combinations(options, shared, self.bound.of_pool(pool)),
                is_one_group=len({self.arrangement.devices[role] for role in pool}) == 1,
            )
        return self._known.fronts[key]

    def limit_of(self, pool: Sequence[Role], limit_s: float) -> float:
        """Returns how long a pool may be busy in an iteration shorter than `limit_s`."""
        own = {task: seconds for task, seconds in self.fastest.items() if task[0] in pool}
        others = {task: seconds for task, seconds in self.fastest.items() if task[0] not in pool}
        return self.bound.limit_of(own, others, limit_s)

    def _key(self, role: Role) -> _Key:
        """What the options of a role depend on; its part of a rollout makes the cuts count."""
        arrangement = self.arrangement
        degrees = tuple(sorted(arrangement.fixed.get(role, {}).items()))
        joins_rollout = any(
            task.role == role and task.stage in ("generate", "score")
            for task in self.graph_of(0).tasks
        )
        generates = role == arrangement.generating_role
        way = arrangement.generation if generates else None
        parts = self.cuts.parts if joins_rollout else 0
        return role, arrangement.devices[role], degrees, way, generates, parts

    def plan_of(self, options: Iterable[Option]) -> Plan:
        """Returns the plan that options make."""
        placement: dict[Role, RolePlacement] = {option.role: option.placement for option in options}
        return _plan(self.arrangement, self.cuts, placement)


def bare_plan(arrangement: Arrangement, cuts: Cuts) -> Plan:
    """Returns an arrangement as a plan with no degree chosen: enough for its groups and graphs."""
    whole: dict[Role, RolePlacement] = {
        role: RolePlacement(devices, data_parallel=len(devices))
        for role, devices in arrangement.devices.items()
    }
    return _plan(arrangement, cuts, whole)


def _plan(arrangement: Arrangement, cuts: Cuts, placement: dict[Role, RolePlacement]) -> Plan:
    return Plan(
        rank=None,
        strategy=arrangement.strategy,
        feasible=False,
        why=arrangement.note,
        placement=placement,
        export_only=arrangement.is_export_only
        or any(obstacle(held) is not None for held in placement.values()),
        rollout_micro_batches=cuts.parts,
        sync_every=cuts.sync_every,
    )
