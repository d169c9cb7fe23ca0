"""Finds the best plan of every strategy by simulating those that a bound does not rule out."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from flexrlhf.core.names import GenerationMode, Role, Stage, StrategyName
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.plan import Plan, RolePlacement, SearchSummary
from flexrlhf.planning.search.combinations import (
    Combination,
    Combinations,
    shared_devices,
)
from flexrlhf.planning.search.evaluation import (
    Evaluation,
    Prepared,
    evaluate,
    graph_source,
    iteration_shape,
    prepare,
    run,
)
from flexrlhf.planning.search.options import Option, RoleOptions
from flexrlhf.planning.search.pools import PoolChoice, PoolFront, Times, joined, pools_of, smaller
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.workflow.groups import device_groups

_Key = tuple[Role, tuple[int, ...], tuple[tuple[str, Any], ...], GenerationMode | None, bool, int]
_Entry = tuple[float, Plan, Prepared]
"""A bound in seconds, the plan as wanted, and with its micro-batches."""


@dataclass(slots=True)
class _Known:
    """What was found in other arrangements."""

    options: dict[_Key, list[Option]] = field(default_factory=dict[_Key, list[Option]])
    fronts: dict[tuple[_Key, ...], PoolFront] = field(
        default_factory=dict[tuple[_Key, ...], PoolFront]
    )


_DEPTHS: Final = (1, 2, 4, 8)
"""Parts into which a rollout is cut where generation and scoring can overlap."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best of one strategy."""

    strategy: StrategyName
    arrangement: Arrangement
    best: Evaluation
    """The best that fits; where none does, the one that lacks least."""
    wanted: Plan
    """The same plan before micro-batches were found for it."""
    rollout_micro_batches: int = 1


class Search:
    """The search for one request; counts what it does.

    Args:
        request: what is placed.
        exhaustive: simulate every combination and rule out nothing: for checks of the bounds.
    """

    def __init__(self, request: PlanRequest, *, exhaustive: bool = False) -> None:
        self._request = request
        self._exhaustive = exhaustive
        self._known = _Known()
        self._num_candidates = 0
        self._num_simulated = 0
        self._started_s = time.perf_counter()

    @property
    def summary(self) -> SearchSummary:
        """What has been done until now."""
        return SearchSummary(
            candidates=self._num_candidates,
            simulated=self._num_simulated,
            seconds=round(time.perf_counter() - self._started_s, 3),
        )

    def best_of(self, arrangements: Sequence[Arrangement]) -> Found | None:
        """Returns the best plan of arrangements of one strategy; None if there is none at all.

        Arrangements are gone through in the order of what they can give at best.
        """
        best: Found | None = None
        self._known.fronts.clear()  # they were found under the limit of another strategy
        for floor, held in sorted(self._fields(arrangements), key=lambda entry: entry[0]):
            limit = math.inf if best is None else self.score(best.best)
            if floor >= limit and not self._exhaustive:
                break
            for wanted, evaluation in self._candidates(held, limit):
                if best is None or self._is_better(evaluation, best.best):
                    arrangement = held.arrangement
                    best = Found(arrangement.strategy, arrangement, evaluation, wanted, held.depth)
        return best

    def _fields(self, arrangements: Sequence[Arrangement]) -> Iterator[tuple[float, _Field]]:
        """Every arrangement with every depth of its pipeline, and the score that it cannot beat."""
        for arrangement in arrangements:
            for depth in self._depths(arrangement):
                held = _Field(
                    self._request,
                    arrangement,
                    depth,
                    known=self._known,
                    exhaustive=self._exhaustive,
                )
                yield self._score_of(arrangement, held.floor_s), held

    def score(self, evaluation: Evaluation) -> float:
        """Returns what the best plan has least of: seconds, or dollars per sample."""
        predicted = evaluation.plan.predicted
        if predicted is None:
            return math.inf
        if self._request.objective == "cost" and predicted.cost_per_1k_samples is not None:
            return predicted.cost_per_1k_samples
        return predicted.iteration_s

    def _candidates(self, field: _Field, limit: float) -> Iterator[tuple[Plan, Evaluation]]:
        """Evaluates plans in the order of their bounds, while one may still be better.

        Where none fits, the one that rests on least memory is evaluated to say what it lacks.
        """
        is_divided = len(field.pools) > 1 and not self._exhaustive
        if is_divided and math.isinf(limit):
            for wanted, evaluation in self._first(field):
                limit = min(limit, self.score(evaluation))
                yield wanted, evaluation
        entries = self._by_combinations(field)
        if is_divided:
            entries = self._by_pools(field, limit / self._score_of(field.arrangement, 1.0))
        for bound, wanted, prepared in entries:
            if self._score_of(field.arrangement, bound) >= limit and not self._exhaustive:
                break
            self._num_simulated += 1
            evaluation = run(self._request, prepared, field.depth, field.graph_of)
            limit = min(limit, self.score(evaluation))
            yield wanted, evaluation
        if math.isinf(limit) and field.least is not None:
            wanted = field.plan_of(field.least.options)
            yield wanted, evaluate(self._request, wanted, rollout_micro_batches=field.depth)

    def _by_combinations(self, field: _Field) -> Iterator[_Entry]:
        """All combinations of all roles, best bound first.

        The first bound looks at a grid of micro-batch sizes; those that are next by it get a
        second one from the sizes that fit.
        """
        waiting: list[tuple[float, int, Plan, Prepared]] = []
        for number, combination in enumerate(field.combinations()):
            self._num_candidates += 1
            if math.isinf(combination.bound_s):
                field.least = smaller(field.least, combination)
                continue
            while waiting and waiting[0][0] <= combination.bound_s:
                bound, _, wanted, prepared = heapq.heappop(waiting)
                yield bound, wanted, prepared
            wanted = field.plan_of(combination.options)
            prepared = prepare(self._request, wanted, field.depth)
            if not prepared.fit.is_feasible:
                field.least = smaller(field.least, combination)
                continue
            bound = field.bound_s(field.times_of(combination.options, prepared))
            heapq.heappush(waiting, (bound, number, wanted, prepared))
        while waiting:
            bound, _, wanted, prepared = heapq.heappop(waiting)
            yield bound, wanted, prepared

    def _first(self, field: _Field) -> Iterator[tuple[Plan, Evaluation]]:
        """The fastest choices of each pool that fit: a plan to measure all others by."""
        first = [field.first_choice(pool, self._count) for pool in field.pools]
        choices = [choice for choice in first if choice is not None]
        if len(choices) == len(first):
            wanted = field.plan_of(joined(choices, field.roles)[0])
            self._num_simulated += 1
            prepared = prepare(self._request, wanted, field.depth)
            yield wanted, run(self._request, prepared, field.depth, field.graph_of)

    def _by_pools(self, field: _Field, limit_s: float) -> Iterator[_Entry]:
        """Combinations of the choices of every pool, best bound first.

        Args:
            field: the arrangement.
            limit_s: choices that keep a pool busy for so long are left out.
        """
        fronts = [field.front(pool, self._count, limit_s) for pool in field.pools]
        if not all(front.choices for front in fronts):
            found = [front.least for front in fronts if front.least is not None]
            field.least = found[0] if found else None
            return
        entries: list[tuple[float, int, tuple[Option, ...]]] = []
        for number, choices in enumerate(product(*(front.choices for front in fronts))):
            options, times = joined(choices, field.roles)
            entries.append((field.bound_s(times), number, options))
        for bound, _, options in sorted(entries, key=lambda entry: entry[:2]):
            wanted = field.plan_of(options)
            yield bound, wanted, prepare(self._request, wanted, field.depth)

    def _count(self) -> None:
        self._num_candidates += 1

    def _score_of(self, arrangement: Arrangement, seconds: float) -> float:
        """What the score of an iteration of so many seconds is."""
        request = self._request
        if request.objective == "cost":
            used = {device for held in arrangement.devices.values() for device in held}
            price = request.cluster.price_per_hour(sorted(used))
            if price is not None:
                return price / 3600 * seconds / request.workload.num_samples * 1000
        return seconds

    def _depths(self, arrangement: Arrangement) -> tuple[int, ...]:
        plan = _plan(arrangement, {r: _whole(d) for r, d in arrangement.devices.items()})
        prompts = self._request.workload.num_samples // self._request.workload.samples_per_prompt
        if "shadow_actor" not in arrangement.devices or len(device_groups(plan)) == 1:
            return (1,)
        return tuple(depth for depth in _DEPTHS if depth <= prompts)

    def _is_better(self, evaluation: Evaluation, best: Evaluation) -> bool:
        ours, theirs = self.score(evaluation), self.score(best)
        if math.isinf(ours) and math.isinf(theirs):
            return evaluation.fit.spare_bytes > best.fit.spare_bytes
        return ours < theirs


class _Field:
    """What combinations of one arrangement have in common."""

    def __init__(
        self,
        request: PlanRequest,
        arrangement: Arrangement,
        depth: int,
        *,
        known: _Known,
        exhaustive: bool,
    ) -> None:
        self.depth = depth
        self._request = request
        self.arrangement = arrangement
        plan = _plan(arrangement, {r: _whole(d) for r, d in arrangement.devices.items()})
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


def _plan(arrangement: Arrangement, placement: dict[Role, RolePlacement]) -> Plan:
    return Plan(
        rank=None,
        strategy=arrangement.strategy,
        feasible=False,
        why=arrangement.note,
        placement=placement,
        export_only=arrangement.is_export_only,
    )


def _whole(devices: tuple[int, ...]) -> RolePlacement:
    return RolePlacement(devices, data_parallel=len(devices))


def _chains(request: PlanRequest, arrangement: Arrangement) -> list[list[tuple[Role, Stage]]]:
    """Generation and the training of one role follow each other, with the barrier between."""
    spec = request.spec
    start: list[tuple[Role, Stage]] = (
        [(arrangement.generating_role, "generate")] if spec.generates else []
    )
    return [[*start, (role, "train")] for role in spec.trained]
