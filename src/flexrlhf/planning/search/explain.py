"""Why the winner won and each other plan lost, in sentences with numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flexrlhf.core.digits import three_digits
from flexrlhf.core.timeline import Share
from flexrlhf.planning.placement.plan import Bound
from flexrlhf.planning.placement.prediction import Prediction
from flexrlhf.planning.search.more_memory import LargestBatch, MoreMemory
from flexrlhf.planning.search.request import Objective
from flexrlhf.planning.search.search import Found
from flexrlhf.planning.search.sensitivity import TIE, Gains
from flexrlhf.planning.search.stage_words import STAGE_WORDS, UNSEEN, stages_taken

_MORE: Final[dict[Bound, str]] = {
    "compute": "devices twice as fast",
    "memory": "twice the memory",
    "communication": "links twice as fast",
    "scheduling": "no idle device",
}
"""What each gain is of. What a stage gathers and reduces while it computes counts as the stage, so
the share of data moved does not say by itself that links bound a plan."""


def why_won(
    found: Found,
    second: Found | None,
    *,
    gains: Gains,
    another_node: Mapping[str, float],
    memory: MoreMemory,
    objective: Objective = "throughput",
) -> str:
    """Returns sentences on the winner.

    Args:
        found: the winner.
        second: the next, if there is one.
        gains: what it would gain.
        another_node: by what factor a node more makes it faster, per pool of nodes.
        memory: what twice the memory would give.
        objective: by which plans are ranked.
    """
    predicted = _predicted(found)
    parts = [f"{found.arrangement.note.rstrip('.')}: {_taken(predicted, objective)}"]
    parts[0] += f" ({stages_taken(predicted)})"
    if second is not None:
        other = _predicted(second)
        ratio = _measure(other, objective) / _measure(predicted, objective)
        if ratio < 1 + TIE:
            parts.append(f"level with {second.strategy}, the next")
        elif objective == "cost":
            parts.append(f"{second.strategy}, the next, costs {ratio:.2f} times as much")
        else:
            parts.append(f"{ratio:.2f} times as fast as {second.strategy}, the next")
            parts.append(f"where {_longer(other, predicted)}")
    said = f"{_bound(gains, memory)}{_another(another_node)}{_batch(memory.largest)}"
    return f"{', '.join(parts)}. {said}"


def why_lost(
    found: Found, winner: Found, *, gains: Gains, objective: Objective = "throughput"
) -> str:
    """Returns one sentence on a plan that fits and is slower or dearer: where its time goes.

    Args:
        found: the plan.
        winner: the best.
        gains: what the plan would gain, which says what bounds it.
        objective: by which plans are ranked.
    """
    ours, best = _predicted(found), _predicted(winner)
    ratio = _measure(ours, objective) / _measure(best, objective)
    level = " (level)" if ratio < 1 + TIE else ""
    idle = ours.shares.get("bubble", 0.0)
    moved = ours.shares.get("communication", 0.0) + ours.shares.get("sync", 0.0)
    waits = f"devices wait {idle:.0%} of the time and move data {moved:.0%}"
    devices = ""
    if objective == "cost" and len(found.best.plan.devices) != len(winner.best.plan.devices):
        devices = f"{len(found.best.plan.devices)} devices instead of "
        devices += f"{len(winner.best.plan.devices)} are paid for; "
    return (
        f"{_taken(ours, objective)}, {ratio:.2f} times the best{level}: "
        f"{devices}{_longer(ours, best)}; {waits}; bound by {gains.bound_by} "
        f"({_MORE[gains.bound_by]} would give x{gains.of(gains.bound_by):.2f})."
    )


def why_unfit(found: Found) -> str:
    """Returns one sentence on a plan that does not fit."""
    return f"Out of memory: {found.best.fit.sentence()}."


def _measure(predicted: Prediction, objective: Objective) -> float:
    """What plans are ranked by; seconds where no price is known."""
    cost = predicted.cost_per_1k_samples if objective == "cost" else None
    return predicted.iteration_s if cost is None else cost


def _taken(predicted: Prediction, objective: Objective) -> str:
    cost = predicted.cost_per_1k_samples if objective == "cost" else None
    paid = "" if cost is None else f"{three_digits(cost)} USD for 1,000 samples, "
    return f"{paid}{three_digits(predicted.iteration_s)} s an iteration"


def _longer(ours: Prediction, best: Prediction) -> str:
    """Which stage takes longer than in the best, by the most."""
    losses: dict[Share, float] = {
        stage: ours.stage_s.get(stage, 0.0) - best.stage_s.get(stage, 0.0) for stage in STAGE_WORDS
    }
    worst = max(losses, key=lambda stage: losses[stage])
    if losses[worst] < UNSEEN * best.iteration_s:
        return "no stage takes notably longer"
    return (
        f"{STAGE_WORDS[worst]} takes {three_digits(ours.stage_s.get(worst, 0.0))} s instead of "
        f"{three_digits(best.stage_s.get(worst, 0.0))} s"
    )


def _bound(gains: Gains, memory: MoreMemory) -> str:
    by = f" (by {memory.strategy}, planned anew)" if memory.strategy else ""
    first, *others = (f"x{gains.of(bound):.2f}{by if bound == 'memory' else ''}" for bound in _MORE)
    names = list(_MORE.values())
    said = [f"{names[0]} would give {first}"]
    said += [f"{name} {gain}" for name, gain in zip(names[1:], others, strict=True)]
    return f"Bound by {gains.bound_by}: {', '.join(said)}."


def _batch(largest: LargestBatch | None) -> str:
    if largest is None:
        return ""
    return (
        f" If an iteration were one pass, {largest.samples} "
        f"{'sample' if largest.samples == 1 else 'samples'} a device would fit, with twice"
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
