"""What the plans of one arrangement have in common, and the choices that make them up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flexrlhf.core.names import GenerationMode, Role, Stage
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.search.combinations import Combination, Combinations, shared_devices
from flexrlhf.planning.search.evaluation import Prepared, graph_source, iteration_shape, prepare
from flexrlhf.planning.search.options import Option, RoleOptions
from flexrlhf.planning.search.pools import PoolChoice, PoolFront, Times, pools_of
from flexrlhf.planning.search.request import PlanRequest

_Key = tuple[Role, tuple[int, ...], tuple[tuple[str, Any], ...], GenerationMode | None, bool, int]


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
        depth: int,
        *,
        known: Known,
        exhaustive: bool,
    ) -> None:
        self.depth = depth
        self._request = request
        self.arrangement = arrangement
        plan = bare_plan(arrangement)
        self._shape = iteration_shape(request, plan, depth)
        self.graph_of = graph_source(request, plan, self._shape)
        self._finder = RoleOptions(request, arrangement, self.graph_of(0), self._shape)
        self._known = known
        self._options: dict[Role, list[Option]] = {}
        for role in arrangement.devices:
            key = self._key(role)
            if key not in known.options:
                find = self._finder.all_of if exhaustive else self._finder.of
                known.options[key] = find(role)
            self._options[role] = known.options[key]
        self.pools = pools_of(arrangement.devices)
        self.least: Combination | None = None
        overlaps = self._shape.num_in_flight > 1
        self._chains = [] if overlaps else _chains(request, arrangement)
        self._shared = shared_devices(
            request.cluster, arrangement.devices, request.calibration, fill=request.memory_fill
        )

    @property
    def floor_s(self) -> float:
        """Seconds that no iteration beats, with the fastest option and all memory for each role."""
        fastest: dict[tuple[Role, Stage], float] = {
            (role, stage): min(min(option.loads[stage].seconds) for option in options)
            for role, options in self._options.items()
            for stage in (options[0].loads if options else ())
        }
        return self.bound_s(fastest)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Every role that has a place."""
        return tuple(self._options)

    def combinations(self) -> Combinations:
        """Returns all combinations, best bound first."""
        return Combinations(self._options, self._shared, self._chains)

    def front(self, pool: Sequence[Role], count: Callable[[], None], limit_s: float) -> PoolFront:
        """Returns the choices of a pool, found once for all arrangements that have it.

        What is found under one limit serves under every lower one, and limits only fall.

        Args:
            pool: its roles.
            count: called for every combination that is looked at.
            limit_s: choices that keep the pool busy for so long are left out.
        """
        key = tuple(self._key(role) for role in pool)
        if key not in self._known.fronts:
            self._known.fronts[key] = self._find_front(pool, count, limit_s)
        return self._known.fronts[key]

    def first_choice(self, pool: Sequence[Role], count: Callable[[], None]) -> PoolChoice | None:
        """Returns the first choice by the bounds that fits; None if there is none."""
        for combination in self._pool_combinations(pool):
            count()
            if math.isinf(combination.bound_s):
                return None
            if choice := self._choice(combination):
                return choice
        return None

    def _find_front(
        self, pool: Sequence[Role], count: Callable[[], None], limit_s: float
    ) -> PoolFront:
        front = PoolFront(len({self.arrangement.devices[role] for role in pool}) == 1)
        for combination in self._pool_combinations(pool):
            if limit_s <= combination.bound_s < math.inf:
                break
            count()
            if math.isinf(combination.bound_s):
                front.least = combination
                break
            if front.beats(combination.stage_s):
                continue
            choice = self._choice(combination)
            if choice is not None and not front.beats(choice.stage_s):
                front.add(choice)
        return front

    def _pool_combinations(self, pool: Sequence[Role]) -> Combinations:
        shared = [devices for devices in self._shared if set(devices.roles) <= set(pool)]
        return Combinations({role: self._options[role] for role in pool}, shared, ())

    def _choice(self, combination: Combination) -> PoolChoice | None:
        """Returns the choice that a combination makes; None if it does not fit after all."""
        held = tuple(self.arrangement.devices)
        plan = self.plan_of(combination.options)
        prepared = prepare(self._request, plan, self.depth, held=held)
        if not prepared.fit.is_feasible:
            return None
        return PoolChoice(combination.options, self.times_of(combination.options, prepared))

    def _key(self, role: Role) -> _Key:
        """What the options of a role depend on; its part of a rollout makes the depth count."""
        arrangement = self.arrangement
        degrees = tuple(sorted(arrangement.fixed.get(role, {}).items()))
        joins_rollout = any(
            task.role == role and task.stage in ("generate", "score")
            for task in self.graph_of(0).tasks
        )
        generates = role == arrangement.generating_role
        way = arrangement.generation if generates else None
        depth = self.depth if joins_rollout else 0
        return role, arrangement.devices[role], degrees, way, generates, depth

    def plan_of(self, options: Iterable[Option]) -> Plan:
        """Returns the plan that options make."""
        return _plan(self.arrangement, {option.role: option.placement for option in options})

    def times_of(self, options: Iterable[Option], prepared: Prepared) -> Times:
        """Returns what each role takes per stage with the micro-batches that it really has."""
        places = {placed.role: placed for placed in prepared.roles}
        return {
            (option.role, stage): seconds
            for option in options
            if option.role in places
            for stage, seconds in self._finder.stage_s(
                option, places[option.role], prepared.concurrent
            ).items()
        }

    def bound_s(self, times: Times) -> float:
        """Returns the seconds that no iteration can beat: the busiest device, the longest chain."""
        busy: dict[Role, float] = dict.fromkeys(self._options, 0.0)
        for (role, _), seconds in times.items():
            busy[role] += seconds
        busiest = max(sum(busy[role] for role in devices.roles) for devices in self._shared)
        lengths = [sum(times.get(link, 0.0) for link in chain) for chain in self._chains]
        return max([busiest, *lengths])


def bare_plan(arrangement: Arrangement) -> Plan:
    """Returns an arrangement as a plan with no degree chosen: enough for its groups and graphs."""
    whole: dict[Role, RolePlacement] = {
        role: RolePlacement(devices, data_parallel=len(devices))
        for role, devices in arrangement.devices.items()
    }
    return _plan(arrangement, whole)


def _plan(arrangement: Arrangement, placement: dict[Role, RolePlacement]) -> Plan:
    return Plan(
        rank=None,
        strategy=arrangement.strategy,
        feasible=False,
        why=arrangement.note,
        placement=placement,
        export_only=arrangement.is_export_only,
    )


def _chains(request: PlanRequest, arrangement: Arrangement) -> list[list[tuple[Role, Stage]]]:
    """Generation and the training of one role follow each other, with the barrier between."""
    spec = request.spec
    start: list[tuple[Role, Stage]] = (
        [(arrangement.generating_role, "generate")] if spec.generates else []
    )
    return [[*start, (role, "train")] for role in spec.trained]
