"""Seconds that no iteration can beat, from what each role takes in each stage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from flexrlhf.core.names import Role, Stage

Times = Mapping[tuple[Role, Stage], float]
"""Seconds of all tasks of a role in a stage."""


@dataclass(frozen=True, slots=True)
class WeightSync:
    """New weights on their way from a group that trains to one that generates or scores."""

    trained: Sequence[Role]
    """Roles whose training, in turn on the same devices, comes before."""
    seconds: float
    """That it takes at least."""


@dataclass(frozen=True, slots=True)
class IterationBound:
    """The shortest iteration of one arrangement.

    All generation and scoring comes before all training, with a barrier between: so where
    iterations do not overlap, the busiest device before and the busiest device behind it add up.
    The last part of a rollout is scored when all generation is over, and the next iteration waits
    for the new weights. What a role takes in the stage `sync` is left out: where another group
    still trains, it costs nothing.
    """

    meetings: Sequence[Sequence[Role]]
    """Roles that meet on a device, one entry for devices that are alike."""
    generating_role: Role
    num_parts: int
    """Parts into which a rollout is cut."""
    overlaps: bool
    """Whether iterations overlap; then only the busiest device counts."""
    syncs: Sequence[WeightSync] = ()

    def seconds(self, times: Times) -> float:
        """Returns the bound with these times; what has none takes none."""
        if self.overlaps:
            busy: dict[Role, float] = {}
            for (role, stage), seconds in times.items():
                if stage != "sync":
                    busy[role] = busy.get(role, 0.0) + seconds
            return self._busiest(busy)
        before_s, after_s = self.sides(times)
        return before_s + after_s

    def sides(self, times: Times) -> tuple[float, float]:
        """Returns the seconds before the barrier and those behind it, at least."""
        before, scoring, after = dict[Role, float](), dict[Role, float](), dict[Role, float]()
        for (role, stage), seconds in times.items():
            if stage == "train":
                after[role] = after.get(role, 0.0) + seconds
            elif stage != "sync":
                before[role] = before.get(role, 0.0) + seconds
            if stage == "score":
                scoring[role] = seconds
        generation_s = times.get((self.generating_role, "generate"), 0.0)
        chain_s = generation_s + self._busiest(scoring) / self.num_parts
        synced = (sum(after.get(r, 0.0) for r in s.trained) + s.seconds for s in self.syncs)
        return max(self._busiest(before), chain_s), max(self._busiest(after), *synced, 0.0)

    def of_pool(self, pool: Collection[Role]) -> IterationBound:
        """Returns the bound with the tasks of some roles alone, that share devices with no other.

        What no role of the pool has takes no time then.
        """
        return replace(
            self,
            meetings=[roles for roles in self.meetings if set(roles) <= set(pool)],
            syncs=[sync for sync in self.syncs if set(sync.trained) <= set(pool)],
        )

    def limit_of(self, own: Times, others: Times, limit_s: float) -> float:
        """Returns how long a pool may be busy for the iteration to stay below `limit_s`.

        Args:
            own: what each role of the pool takes at least; no other role shares its devices.
            others: what all other roles take at least.
            limit_s: seconds of an iteration.
        """
        stages = {stage for (_, stage), seconds in own.items() if seconds > 0} - {"sync"}
        if self.overlaps or ("train" in stages and len(stages) > 1):
            return limit_s
        before_s, after_s = self.sides(others)
        if "train" in stages:
            return limit_s - before_s
        left_s = limit_s - after_s
        if "generate" in stages:
            return left_s
        generation_s = others.get((self.generating_role, "generate"), 0.0)
        return min(left_s, self.num_parts * (left_s - generation_s))

    def _busiest(self, busy: Mapping[Role, float]) -> float:
        return max(sum(busy.get(role, 0.0) for role in roles) for roles in self.meetings)
