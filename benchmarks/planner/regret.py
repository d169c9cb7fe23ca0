"""What the paper's rule of thumb costs on each case of the grid, and which pools are best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from cases import Case
from comparing import OWN, Comparison, Outcome, fastest

COMPETING: Final = tuple(name for name in OWN if name != "tp_generation")
"""Plans of `tp_generation` are plans of `colocated`, which leaves open how generation is split."""


def judged(case: Case) -> dict[str, Any]:
    """Returns a case with the simulated seconds of an iteration by strategy and by the rule."""
    comparison = Comparison(case.request())
    outcomes = comparison.best_of(COMPETING)
    rule = comparison.best_of(["guideline"])["guideline"]
    return {
        "case": asdict(case),
        "seconds": {name: outcome.iteration_s for name, outcome in outcomes.items()},
        "guideline": {"strategy": rule.strategy, "seconds": rule.iteration_s},
        "pools": _pools(comparison, outcomes),
    }


def _pools(comparison: Comparison, outcomes: Mapping[str, Outcome]) -> dict[str, Any] | None:
    """The best pools, and the best of those that the rule of thumb allows."""
    best = outcomes.get("disaggregated")
    if best is None or best.iteration_s is None:
        return None
    within = comparison.within_range()
    return {
        "share": best.generation_share,
        "seconds": best.iteration_s,
        "within_seconds": within.iteration_s if within else None,
        "wins": fastest(outcomes) is best,
    }
