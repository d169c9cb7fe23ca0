"""Finds the best plan of every strategy by simulating those that a bound does not rule out."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from typing import Final

from flexrlhf.core.names import StrategyName
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.plan import Plan, SearchSummary
from flexrlhf.planning.search.by_profile import ProfiledClimb
from flexrlhf.planning.search.combinations import Combination
from flexrlhf.planning.search.evaluation import (
    Evaluation,
    evaluate,
    prepare,
    run,
)
from flexrlhf.planning.search.field import Cuts, Field, Known, bare_plan
from flexrlhf.planning.search.options import Option
from flexrlhf.planning.search.pools import PoolFront, joined, smaller
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.workflow.groups import device_groups

_Entry = tuple[float, Plan]
"""A bound in seconds, and a plan whose micro-batches are still open."""


_PARTS: Final = (1, 2, 4, 8)
"""Into how many a rollout is cut where generation and scoring can overlap."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best of one strategy."""

    strategy: StrategyName
    arrangement: Arrangement
    best: Evaluation
    """The best that fits; where none does, the one that lacks least."""
    wanted: Plan
    """The same plan before micro-batches were found for it."""


class Search:
    """The search for one request; counts what it does.

    Args:
        request: what is placed.
        exhaustive: simulate every combination and rule out nothing: for checks of the bounds.
    """

    def __init__(self, request: PlanRequest, *, exhaustive: bool = False) -> None:
        self._profiled = request if request.workers is not None else None
        self._request = request = replace(request, workers=None)
        self._exhaustive = exhaustive
        self._known = Known()
        self._limit = math.inf
        """The score that is to be beaten, of the strategy that is looked at."""
        self._num_candidates = 0
        self._num_simulated = 0
        self._started_s = time.perf_counter()

    def with_memory_of(self, request: PlanRequest) -> Search:
        """Returns a search for the same on devices that differ in nothing but memory.

        What each way to split a role takes is known to it: that depends on the room that others
        leave, not on a device's size.
        """
        other = Search(request)
        other._known = Known(self._known.options)
        return other

    def has_room(self, arrangements: Iterable[Arrangement]) -> bool:
        """Returns whether memory rules out no plan and shortens no pass: more of it gives nothing.

        A rollout in parts needs no more of it than one that is undivided.
        """
        return all(self._field(arrangement, Cuts()).has_room for arrangement in arrangements)

    @property
    def summary(self) -> SearchSummary:
        """What has been done until now."""
        return SearchSummary(
            candidates=self._num_candidates,
            simulated=self._num_simulated,
            seconds=round(time.perf_counter() - self._started_s, 3),
        )

    def by_floor(
        self, candidates: Sequence[list[Arrangement] | Refusal]
    ) -> list[list[Arrangement] | Refusal]:
        """Returns strategies in the order of the score that each of them cannot beat."""

        def floor(candidate: list[Arrangement] | Refusal) -> float:
            if isinstance(candidate, Refusal):
                return math.inf
            wholes = [self._field(arrangement, Cuts()) for arrangement in candidate]
            return min(self._floor(whole, Cuts()) for whole in wholes)

        return sorted(candidates, key=floor)

    def best_of(
        self, arrangements: Sequence[Arrangement], *, limit: float = math.inf
    ) -> Found | None:
        """Returns the best plan of arrangements of one strategy; None if there is none at all.

        Arrangements are gone through in the order of what they can give at best.

        Args:
            arrangements: of one strategy.
            limit: a score; what cannot be below it need not be found.
        """
        self._limit = limit if self._profiled is None else math.inf
        best: Found | None = None
        for field in self._fields(arrangements):
            for wanted, evaluation in self._candidates(field, self._limit):
                if best is None or self._is_better(evaluation, best.best):
                    arrangement = field.arrangement
                    best = Found(arrangement.strategy, arrangement, evaluation, wanted)
                    self._limit = self.score(evaluation)
        if best is None or self._profiled is None:
            return best
        fields = [self._field(a, cuts) for a in arrangements for cuts in self._cuts(a)]
        climb = ProfiledClimb(self._profiled, self.score)
        wanted, arrangement, evaluation = climb.best_of(fields, best.wanted, best.arrangement)
        self._num_simulated += climb.num_simulated
        return Found(best.strategy, arrangement, evaluation, wanted)

    def _fields(self, arrangements: Sequence[Arrangement]) -> Iterator[Field]:
        """Every arrangement with all its cuts, by the score that it cannot beat.

        That of many parts is first read from the undivided rollout, since parts never take less
        time than the whole. It ends where no score can be below the limit.
        """
        heap: list[tuple[float, int, Field, Cuts]] = []
        number = count()
        for arrangement in arrangements:
            whole, ways = self._field(arrangement, Cuts()), self._cuts(arrangement)
            self._num_candidates += len(ways) * whole.num_combinations
            heap += [(self._floor(whole, cuts), next(number), whole, cuts) for cuts in ways]
        heapq.heapify(heap)
        while heap:
            floor, _, field, cuts = heapq.heappop(heap)
            if floor >= self._limit < math.inf and not self._exhaustive:
                return
            if field.cuts == cuts:
                yield field
            else:
                field = self._field(field.arrangement, cuts)
                heapq.heappush(heap, (self._floor(field, cuts), next(number), field, cuts))

    def _field(self, arrangement: Arrangement, cuts: Cuts) -> Field:
        return Field(self._request, arrangement, cuts, known=self._known)

    def _floor(self, field: Field, cuts: Cuts) -> float:
        return self._score_of(field.arrangement, field.floor_s(cuts.parts))

    def score(self, evaluation: Evaluation) -> float:
        """Returns what the best plan has least of: seconds, or dollars per sample."""
        predicted = evaluation.plan.predicted
        if predicted is None:
            return math.inf
        if self._request.objective == "cost" and predicted.cost_per_1k_samples is not None:
            return predicted.cost_per_1k_samples
        return predicted.iteration_s

    def _candidates(self, field: Field, limit: float) -> Iterator[tuple[Plan, Evaluation]]:
        """Evaluates plans in the order of their bounds, while one may still be better.

        Where none fits, the one that needs least memory is evaluated to say what it lacks.
        """
        first: Plan | None = None
        if self._exhaustive:
            entries = self._by_trying(field)
        elif len(field.pools) > 1:
            for first, evaluation in self._first(field):
                limit = min(limit, self.score(evaluation))
                yield first, evaluation
            entries = self._by_pools(field, limit / self._score_of(field.arrangement, 1.0))
        else:
            entries = self._by_combinations(field)
        for bound, wanted in entries:
            if self._score_of(field.arrangement, bound) >= limit and not self._exhaustive:
                break
            if wanted == first:
                continue
            evaluation = self._evaluated(field, wanted)
            limit = min(limit, self.score(evaluation))
            yield wanted, evaluation
        if math.isinf(limit) and field.least is not None:
            wanted = field.plan_of(field.least.options)
            yield wanted, evaluate(self._request, wanted)

    def _evaluated(self, field: Field, wanted: Plan) -> Evaluation:
        prepared = prepare(self._request, wanted)
        if not prepared.fit.is_feasible:
            return Evaluation(prepared.plan, prepared.fit)
        self._num_simulated += 1
        return run(self._request, prepared, field.graph_of)

    def _by_trying(self, field: Field) -> Iterator[_Entry]:
        """Everything that fits, in any order."""
        for options in field.every_combination():
            wanted = field.plan_of(options)
            prepared = prepare(self._request, wanted)
            if prepared.fit.is_feasible:
                yield 0.0, wanted
            else:
                field.least = smaller(field.least, Combination(options, math.inf, {}))

    def _by_combinations(self, field: Field) -> Iterator[_Entry]:
        """All combinations of all roles, best bound first."""
        for combination in field.combinations():
            if math.isinf(combination.bound_s):
                field.least = combination
            else:
                yield combination.bound_s, field.plan_of(combination.options)

    def _first(self, field: Field) -> Iterator[tuple[Plan, Evaluation]]:
        """The fastest choices of each pool that fit: a plan to measure all others by."""
        fronts = [field.front(pool) for pool in field.pools]
        for front in fronts:
            front.find_first()
        if all(front.choices for front in fronts):
            fastest = [min(front.choices, key=lambda choice: choice.bound_s) for front in fronts]
            wanted = field.plan_of(joined(fastest, field.roles)[0])
            yield wanted, self._evaluated(field, wanted)

    def _by_pools(self, field: Field, limit_s: float) -> Iterator[_Entry]:
        """Combinations of the choices of every pool, best bound first.

        Args:
            field: the arrangement.
            limit_s: seconds of an iteration that are too many.
        """
        fronts = [field.front(pool) for pool in field.pools]
        limits = [field.limit_of(pool, limit_s) for pool in field.pools]
        for front, limit in zip(fronts, limits, strict=True):
            front.extend(limit)
        if not all(front.choices for front in fronts):
            field.least = _lacking(fronts)
            return
        choices = [
            [choice for choice in front.choices if choice.bound_s < limit]
            for front, limit in zip(fronts, limits, strict=True)
        ]
        entries: list[tuple[float, int, tuple[Option, ...]]] = []
        for number, chosen in enumerate(product(*choices)):
            options, times = joined(chosen, field.roles)
            bound_s = field.bound.seconds(times)
            if bound_s < limit_s:
                entries.append((bound_s, number, options))
        for bound_s, _, options in sorted(entries, key=lambda entry: entry[:2]):
            yield bound_s, field.plan_of(options)

    def _score_of(self, arrangement: Arrangement, seconds: float) -> float:
        """What the score of an iteration of so many seconds is."""
        request = self._request
        if request.objective == "cost":
            used = {device for held in arrangement.devices.values() for device in held}
            price = request.cluster.price_per_hour(sorted(used))
            if price is not None:
                return price / 3600 * seconds / request.workload.num_samples * 1000
        return seconds

    def _cuts(self, arrangement: Arrangement) -> list[Cuts]:
        """Every way to cut the iterations of an arrangement that the request leaves open."""
        periods = self._periods() if "shadow_actor" in arrangement.devices else (1,)
        return [Cuts(parts, every) for parts in self._parts(arrangement) for every in periods]

    def _periods(self) -> tuple[int, ...]:
        """Iterations between two updates of weights; what was generated is as stale as allowed."""
        if self._request.sync_every is not None:
            return (self._request.sync_every,)
        most = self._request.max_staleness + 1
        return (*(2**i for i in range(most.bit_length()) if 2**i < most), most)

    def _parts(self, arrangement: Arrangement) -> tuple[int, ...]:
        """Parts of a rollout; one, unless generation and scoring can overlap."""
        if self._request.rollout_micro_batches is not None:
            return (self._request.rollout_micro_batches,)
        prompts = self._request.workload.num_samples // self._request.workload.samples_per_prompt
        is_one_group = len(device_groups(bare_plan(arrangement, Cuts()))) == 1
        if "shadow_actor" not in arrangement.devices or is_one_group:
            return (1,)
        return tuple(parts for parts in _PARTS if parts <= prompts)

    def _is_better(self, evaluation: Evaluation, best: Evaluation) -> bool:
        ours, theirs = self.score(evaluation), self.score(best)
        if math.isinf(ours) and math.isinf(theirs):
            return evaluation.fit.spare_bytes > best.fit.spare_bytes
        return ours < theirs


def _lacking(fronts: Sequence[PoolFront]) -> Combination | None:
    """Options of all pools, where some fit into no memory; None where only time rules them out."""
    options: list[Option] = []
    for front in fronts:
        if front.choices:
            options += front.choices[0].options
        elif front.least is not None:
            options += front.least.options
        else:
            return None
    return Combination(tuple(options), math.inf, {})
