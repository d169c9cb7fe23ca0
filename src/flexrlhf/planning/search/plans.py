"""The ranked, explained plans of one request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from flexrlhf.core.digits import three_digits
from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import PUBLISHED_SYSTEMS, STRATEGIES, Role, StrategyName
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.arranging import arrangements
from flexrlhf.planning.placement.choices import NO_CHOICES, Choices
from flexrlhf.planning.placement.plan import ChosenBy, Plan, SearchSummary
from flexrlhf.planning.search.another_node import gains_of_another_node
from flexrlhf.planning.search.explain import why_lost, why_unfit, why_won
from flexrlhf.planning.search.more_memory import MoreMemory, more_memory
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.search import Found, Search
from flexrlhf.planning.search.sensitivity import Gains, gains_of
from flexrlhf.planning.search.told_degrees import check_degrees

_OWN: Final[tuple[StrategyName, ...]] = tuple(
    name for name in STRATEGIES if name not in PUBLISHED_SYSTEMS and name != "custom"
)


_NO_SPLIT: Final = (
    "No degree that it allows divides the heads of every model and its devices, with a layer for "
    "every pipeline stage."
)


@dataclass(frozen=True, slots=True)
class RankedPlans:
    """Every plan, the best first and those that cannot be last, and how they were found."""

    plans: tuple[Plan, ...]
    search: SearchSummary
    found: tuple[Found, ...] = ()
    """What stands behind the plans that fit, in the same order."""
    another_node: Mapping[str, float] = field(default_factory=dict[str, float])
    """By what factor iterations would be faster with a node more, per pool of nodes."""
    gains: Gains | None = None
    """What the best would gain from more of one thing; None where nothing fits."""
    memory: MoreMemory | None = None
    """What it would gain from twice the memory, planned anew."""

    @property
    def best(self) -> Plan:
        """The winner.

        Raises:
            PlanError: nothing fits.
        """
        if not self.plans or not self.plans[0].feasible:
            raise _nothing_left(self.plans)
        return self.plans[0]


def _nothing_left(plans: Sequence[Plan]) -> PlanError:
    """Says why no plan is left: by memory or time if that ruled out any, else by the layout."""
    whys = "\n    ".join(f"{plan.strategy}: {plan.why}" for plan in plans)
    if any(plan.predicted for plan in plans):
        right = "Some placement is fast enough for placement.max_p99_iteration_s."
        do = "Raise it, take more or faster devices, or fewer or shorter samples."
    elif any(plan.placement for plan in plans):
        right = "The weights, states and caches of some placement fit into every device."
        do = (
            "Take more or larger devices, smaller models, adapters (model.ROLE.lora), shorter "
            "answers, or offload (placement.roles.ROLE.offload=true)."
        )
    else:
        right = "Algorithm, cluster and degrees allow some way to place the roles."
        do = "Let the planner choose (--strategy auto), or change what the sentences above name."
    return PlanError(f"No placement fits.\n    {whys}", right, do)


def ranked_plans(
    request: PlanRequest, choices: Choices = NO_CHOICES, *, advised: bool = True
) -> RankedPlans:
    """Returns the best plan of every strategy that was asked for, ranked and explained.

    Args:
        request: what is placed.
        choices: of the user. With `auto` every strategy that can be run here competes, with `all`
            the published systems too.
        advised: also find the best of strategies that lose, and plan anew with another node and
            with twice the memory, which takes several times as long.

    Raises:
        PlanError: the strategy is unknown, or what the user says cannot be had.
        ConfigError: the user names a device that the cluster lacks.
    """
    search = Search(request)
    found: list[Found] = []
    refused: list[Refusal] = []
    candidates = list(_candidates(request, choices))
    is_race = not advised and request.max_p99_iteration_s is None
    limit = math.inf
    for options in search.by_floor(candidates) if is_race else candidates:
        if isinstance(options, Refusal):
            refused.append(options)
        elif best := search.best_of(options, limit=limit):
            found.append(best)
            if is_race:  # who could do no better need not be looked at; equals are
                limit = min(limit, math.nextafter(search.score(best.best), math.inf))
        elif math.isinf(limit):
            check_degrees(request, choices)
            refused.append(Refusal(options[0].strategy, _NO_SPLIT))
    order = [o.strategy if isinstance(o, Refusal) else o[0].strategy for o in candidates]
    found.sort(key=lambda f: order.index(f.strategy))
    fitting = sorted(
        (f for f in found if f.best.plan.predicted), key=lambda f: search.score(f.best)
    )
    late = [f for f in fitting if _is_late(request, f)]
    fitting = [f for f in fitting if f not in late]
    more: Mapping[str, float] = (
        gains_of_another_node(request, choices, fitting[0]) if fitting and advised else {}
    )
    bounds = [gains_of(request, f.best, f.wanted) for f in fitting]
    memory: MoreMemory | None = None
    if fitting:
        competing = [options for options in candidates if not isinstance(options, Refusal)]
        memory = (
            more_memory(search, request, competing, fitting[0])
            if advised
            else MoreMemory(gain=1.0, strategy=None, largest=None)
        )
        bounds[0] = replace(bounds[0], memory=max(bounds[0].memory, memory.gain))
    plans = [
        *_ranked(request, choices, fitting, bounds, (more, memory)),
        *(_late(request, f) for f in late),
        *(replace(f.best.plan, why=why_unfit(f)) for f in found if not f.best.plan.predicted),
        *(Plan(rank=None, strategy=r.strategy, feasible=False, why=r.why) for r in refused),
    ]
    best_gains = bounds[0] if bounds else None
    return RankedPlans(tuple(plans), search.summary, tuple(fitting), more, best_gains, memory)


def _candidates(request: PlanRequest, choices: Choices) -> Iterator[list[Arrangement] | Refusal]:
    for strategy in _strategies(choices):
        yield arrangements(
            strategy,
            request.spec,
            request.cluster,
            choices,
            weight_bytes=_frozen_bytes(request),
        )


def _strategies(choices: Choices) -> tuple[str, ...]:
    if choices.has_layout:
        return ("custom",)
    if choices.strategy == "auto":
        return _OWN
    if choices.strategy == "all":
        return (*_OWN, *PUBLISHED_SYSTEMS)
    return (choices.strategy,)


def _frozen_bytes(request: PlanRequest) -> dict[Role, float]:
    return {
        role: model.weight_bytes
        for role in request.spec.frozen
        if (model := request.model_of(role)) is not None
    }


def _chosen_by(choices: Choices) -> ChosenBy:
    if choices.has_layout or choices.strategy not in ("auto", "all", "guideline"):
        return "user"
    return "guideline" if choices.strategy == "guideline" else "auto"


def _ranked(
    request: PlanRequest,
    choices: Choices,
    fitting: list[Found],
    bounds: list[Gains],
    more: tuple[Mapping[str, float], MoreMemory | None],
) -> Iterator[Plan]:
    another_node, memory = more
    for place, (found, gains) in enumerate(zip(fitting, bounds, strict=True)):
        if place == 0 and memory is not None:
            second = fitting[1] if len(fitting) > 1 else None
            why = why_won(
                found,
                second,
                gains=gains,
                another_node=another_node,
                memory=memory,
                objective=request.objective,
            )
        else:
            why = why_lost(found, fitting[0], gains=gains, objective=request.objective)
        yield replace(
            found.best.plan,
            rank=place + 1,
            chosen_by=_chosen_by(choices) if place == 0 else None,
            bound_by=gains.bound_by,
            why=why,
        )


def _is_late(request: PlanRequest, found: Found) -> bool:
    limit_s = request.max_p99_iteration_s
    assert found.best.simulation is not None
    return limit_s is not None and found.best.simulation.percentile_s(99) > limit_s


def _late(request: PlanRequest, found: Found) -> Plan:
    assert found.best.simulation is not None
    p99_s = found.best.simulation.percentile_s(99)
    why = (
        f"99 of 100 iterations take up to {three_digits(p99_s)} s, more than "
        f"placement.max_p99_iteration_s = {request.max_p99_iteration_s:g}."
    )
    return replace(found.best.plan, feasible=False, why=why)
