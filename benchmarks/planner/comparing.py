"""The best plan of each strategy, the guideline's, and the best pools, of one request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.names import PUBLISHED_SYSTEMS, STRATEGIES
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.arranging import arrangements
from flexrlhf.planning.placement.strategies.guideline import LEAST_SHARE, MOST_SHARE
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.search import Found, Search

OWN: Final = tuple(
    name for name in STRATEGIES if name not in PUBLISHED_SYSTEMS and name != "custom"
)
"""What `auto` chooses from."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The best plan of a strategy."""

    strategy: str
    """Of the plan; the guideline names the one that it chose."""
    iteration_s: float | None
    """Simulated; None where nothing fits."""
    generation_share: float | None
    """Part of the devices at work that a shadow actor has; None without one."""


class Comparison:
    """Answers for one request; what strategies have in common is worked out once."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._search = Search(request)

    def best_of(self, strategies: Iterable[str]) -> dict[str, Outcome]:
        """Returns what each strategy gives; one that has no place for the roles is left out."""
        found = {strategy: self._arrangements(strategy) for strategy in strategies}
        best = {strategy: self._best(held) for strategy, held in found.items()}
        return {strategy: outcome for strategy, outcome in best.items() if outcome is not None}

    def within_range(self) -> Outcome | None:
        """Returns the best pools with 30 to 50 % of the devices for the shadow actor."""
        found = [
            arrangement
            for arrangement in self._arrangements("disaggregated")
            if LEAST_SHARE <= _share(arrangement) <= MOST_SHARE
        ]
        return self._best(found)

    def _arrangements(self, strategy: str) -> list[Arrangement]:
        spec, models = self._request.spec, self._request.models
        weights = {role: models[role].weight_bytes for role in spec.frozen if role in models}
        found = arrangements(strategy, spec, self._request.cluster, weight_bytes=weights)
        return [] if isinstance(found, Refusal) else found

    def _best(self, held: Sequence[Arrangement]) -> Outcome | None:
        found = self._search.best_of(held) if held else None
        return None if found is None else self._outcome(found)

    def _outcome(self, found: Found) -> Outcome:
        predicted, devices = found.best.plan.predicted, found.arrangement.devices
        return Outcome(
            found.strategy,
            None if predicted is None else predicted.iteration_s,
            _share(found.arrangement) if "shadow_actor" in devices else None,
        )


def _share(arrangement: Arrangement) -> float:
    """Part of the devices at work that the shadow actor has."""
    used = {device for held in arrangement.devices.values() for device in held}
    return len(arrangement.devices["shadow_actor"]) / len(used)


def fastest(outcomes: Mapping[str, Outcome]) -> Outcome | None:
    """Returns the outcome with the shortest iteration; None where nothing fits."""
    fitting = [outcome for outcome in outcomes.values() if outcome.iteration_s is not None]
    return min(fitting, key=lambda outcome: outcome.iteration_s or 0.0, default=None)
