"""Why the winner won and each other plan lost, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flexrlhf.core.timeline import Share
from flexrlhf.planning.placement.prediction import Prediction
from flexrlhf.planning.search.more_memory import LargestBatch, MoreMemory
from flexrlhf.planning.search.search import Found
from flexrlhf.planning.search.sensitivity import TIE, Gains

_WORDS: Final[dict[Share, str]] = {
    "generate": "generation",
    "score": "scoring",
    "train": "training",
    "sync": "weight sync",
}
_UNSEEN: Final = 0.005
"""Part of an iteration below which a difference is none in the digits that are shown."""


def why_won(
    found: Found,
    gains: Gains,
    second: Found | None,
    another_node: Mapping[str, float],
    memory: MoreMemory,
) -> str:
    """Returns sentences on the winner.

    Args:
        found: the winner.
        gains: what it would gain.
        second: the next, if there is one.
        another_node: by what factor a node more makes it faster, per pool of nodes.
        memory: what twice the memory would give.
    """
    predicted = _predicted(found)
    parts = [f"{found.arrangement.note.rstrip('.')}: {predicted.iteration_s:.3g} s an iteration"]
    if second is not None:
        ratio = _predicted(second).iteration_s / predicted.iteration_s
        lead = "level with" if ratio < 1 + TIE else f"{ratio:.2f} times as fast as"
        parts.append(f"{lead} {second.strategy}, the next")
    said = f"{_bound(gains, memory)}{_another(another_node)}{_batch(memory.largest)}"
    return f"{', '.join(parts)}. {said}"


def why_lost(found: Found, winner: Found) -> str:
    """Returns one sentence on a plan that fits and is slower: where its time goes."""
    ours, best = _predicted(found), _predicted(winner)
    ratio = ours.iteration_s / best.iteration_s
    losses: dict[Share, float] = {
        stage: ours.stage_s.get(stage, 0.0) - best.stage_s.get(stage, 0.0) for stage in _WORDS
    }
    worst = max(losses, key=lambda stage: losses[stage])
    reason = (
        f"{_WORDS[worst]} takes {ours.stage_s.get(worst, 0.0):.3g} s instead of "
        f"{best.stage_s.get(worst, 0.0):.3g} s"
    )
    if losses[worst] < _UNSEEN * best.iteration_s:
        reason = "no stage takes notably longer"
    level = " (level)" if ratio < 1 + TIE else ""
    idle = ours.shares.get("bubble", 0.0)
    moved = ours.shares.get("communication", 0.0) + ours.shares.get("sync", 0.0)
    waits = f"devices wait {idle:.0%} of the time and move data {moved:.0%}"
    return (
        f"{ours.iteration_s:.3g} s an iteration, {ratio:.2f} times the best{level}: "
        f"{reason}; {waits}."
    )


def why_unfit(found: Found) -> str:
    """Returns one sentence on a plan that does not fit."""
    return f"Out of memory: {found.best.fit.sentence()}."


def _bound(gains: Gains, memory: MoreMemory) -> str:
    by = f" (by {memory.strategy}, planned anew)" if memory.strategy else ""
    said = {
        "compute": f"devices twice as fast would give x{gains.compute:.2f}",
        "memory": f"twice the memory x{gains.memory:.2f}{by}",
        "communication": f"links twice as fast x{gains.communication:.2f}",
        "scheduling": f"no idle device x{gains.scheduling:.2f}",
    }
    return f"Bound by {gains.bound_by}: {', '.join(said.values())}."


def _batch(largest: LargestBatch | None) -> str:
    if largest is None:
        return ""
    return (
        f" If an iteration were one pass, {largest.samples} samples a device would fit, with twice"
        f" the memory {largest.doubled_samples}, which gives x{largest.gain:.2f} the samples/s."
    )


def _another(gains: Mapping[str, float]) -> str:
    if not gains:
        return ""
    if len(gains) == 1:
        return f" One more node would give x{next(iter(gains.values())):.2f}."
    said = [f"x{gain:.2f} in {pool}" for pool, gain in gains.items()]
    return f" One more node would give {', '.join(said)}."


def _predicted(found: Found) -> Prediction:
    predicted = found.best.plan.predicted
    assert predicted is not None, "only plans that fit are compared"
    return predicted
