"""The best plan of a strategy by a profile: what the bounds found, bettered role by role.

Bounds hold for the costs of the catalogue. By a profile other degrees may be faster, so that from
the fastest arrangements each role tries every way to be split, until none of them helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from flexrlhf.core.names import Role
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.evaluation import Evaluation, evaluate
from flexrlhf.planning.search.field import Field
from flexrlhf.planning.search.options import Option
from flexrlhf.planning.search.request import PlanRequest

_CLIMBED: Final = 4
"""Arrangements with their cuts from which a better plan is looked for."""

Chosen = tuple[Plan, Arrangement, Evaluation]
_Way = dict[Role, Option]


class ProfiledClimb:
    """Looks for the best plan by a profile.

    Args:
        request: with what the profile says.
        score: of an evaluation; the least is best.
    """

    def __init__(self, request: PlanRequest, score: Callable[[Evaluation], float]) -> None:
        self._request = request
        self._score = score
        self.num_simulated = 0

    def best_of(self, fields: Sequence[Field], wanted: Plan, arrangement: Arrangement) -> Chosen:
        """Returns the best plan of one strategy.

        Args:
            fields: its arrangements with all their cuts.
            wanted: the best by the catalogue's costs, micro-batches left open.
            arrangement: of that plan.
        """
        best: Chosen = (wanted, arrangement, self._evaluated(wanted))
        starts: list[tuple[float, int]] = []
        for number, field in enumerate(fields):
            starts.append(
                (self._score(self._evaluated(field.plan_of(_fastest(field).values()))), number)
            )
        for score, number in sorted(starts)[:_CLIMBED]:
            if math.isfinite(score):
                chosen = self._climbed(fields[number])
                if self._score(chosen[2]) < self._score(best[2]):
                    best = chosen
        return best

    def _climbed(self, field: Field) -> Chosen:
        """Changes one role at a time for the better, until no change is one."""
        way = _fastest(field)
        plan = field.plan_of(way.values())
        evaluation = self._evaluated(plan)
        is_better = True
        while is_better:
            is_better = False
            for role, options in field.options.items():
                for option in options:
                    if option is way[role]:
                        continue
                    changed = dict(way)
                    changed[role] = option
                    other = field.plan_of(changed.values())
                    found = self._evaluated(other)
                    if self._score(found) < self._score(evaluation):
                        way, plan, evaluation, is_better = changed, other, found, True
        return plan, field.arrangement, evaluation

    def _evaluated(self, plan: Plan) -> Evaluation:
        self.num_simulated += 1
        return evaluate(self._request, plan)


def _fastest(field: Field) -> _Way:
    """The way of each role that takes least by the catalogue, as if it had all memory."""
    return {
        role: min(options, key=lambda option: sum(option.times(math.inf).values()))
        for role, options in field.options.items()
    }
