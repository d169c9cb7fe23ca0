"""What twice the memory would give: another plan, or a larger batch at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from flexrlhf.core.names import StrategyName
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.placement.prediction import Prediction
from flexrlhf.planning.search.evaluation import evaluate
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.search import Found, Search
from flexrlhf.planning.search.sensitivity import TIE, with_more_memory


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The batch that is generated and trained at once, on each device that generates."""

    samples: int
    doubled_samples: int
    """With twice the memory."""
    gain: float
    """How much more samples/s the larger of the two batches gives."""


@dataclass(frozen=True, slots=True)
class MoreMemory:
    """What the winner would gain from twice the memory of every device."""

    gain: float
    """Of the same batch, everything planned anew: 1 unless a plan is better beyond a tie."""
    strategy: StrategyName | None
    """Of the plan that would win then; None where none is better."""
    largest: LargestBatch | None
    """None where memory leaves the batch as good as free."""


def more_memory(
    search: Search,
    request: PlanRequest,
    candidates: Iterable[Sequence[Arrangement]],
    winner: Found,
) -> MoreMemory:
    """Returns what twice the memory would give.

    Args:
        search: by which the winner was found.
        request: what is placed.
        candidates: arrangements of every strategy that competes.
        winner: the best plan.
    """
    larger = replace(request, cluster=with_more_memory(request.cluster))
    largest = _largest(request, larger, winner.wanted)
    candidates = list(candidates)
    if search.has_room(chain.from_iterable(candidates)):
        return MoreMemory(1.0, None, largest)
    search = search.with_memory_of(larger)
    score = search.score(winner.best)
    best: Found | None = None
    limit = score / (1 + TIE)
    for arrangements in candidates:
        found = search.best_of(arrangements, limit=limit)
        if found is not None and search.score(found.best) < limit:
            best, limit = found, search.score(found.best)
    if best is None:
        return MoreMemory(1.0, None, largest)
    return MoreMemory(score / limit, best.strategy, largest)


def _largest(request: PlanRequest, larger: PlanRequest, wanted: Plan) -> LargestBatch | None:
    now, doubled = _at_largest(request, wanted), _at_largest(larger, wanted)
    if now is None or doubled is None or not now.max_batch or not doubled.max_batch:
        return None
    gain = doubled.samples_per_s / now.samples_per_s
    if gain < 1 + TIE:
        return None
    return LargestBatch(now.max_batch, doubled.max_batch, gain)


def _at_largest(request: PlanRequest, wanted: Plan) -> Prediction | None:
    """The plan with as many samples an iteration as it holds at once."""
    predicted = evaluate(request, wanted).plan.predicted
    if predicted is None or not predicted.max_batch or not request.spec.generates:
        return None
    placement = wanted.placement
    generating = placement.get("shadow_actor", placement["actor"]).devices
    samples = predicted.max_batch * len(generating)
    workload = replace(request.workload, num_samples=samples, mini_batches=1)
    return evaluate(replace(request, workload=workload), wanted).plan.predicted
