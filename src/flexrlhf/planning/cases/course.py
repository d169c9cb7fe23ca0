"""The simulated course of a case, and the seconds that a metric asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from flexrlhf.core.names import Role, kind_of
from flexrlhf.core.timeline import Share
from flexrlhf.planning.cases.setting import Setting
from flexrlhf.planning.placement.prediction import Prediction
from flexrlhf.planning.search.evaluation import Evaluation, evaluate
from flexrlhf.planning.simulation.simulation import Simulation
from flexrlhf.planning.workflow.graph import Task, Transfer

_SHARDED: Final = 3
"""The ZeRO stage that shards weights."""


@dataclass(frozen=True)  # Without slots: what was added up is kept.
class Course:
    """One iteration of a case in its steady state."""

    setting: Setting
    evaluation: Evaluation

    @property
    def simulation(self) -> Simulation:
        """The run on the virtual clock."""
        assert self.evaluation.simulation is not None
        return self.evaluation.simulation

    @property
    def predicted(self) -> Prediction:
        """What the plan is expected to take."""
        assert self.evaluation.plan.predicted is not None
        return self.evaluation.plan.predicted

    @cached_property
    def iteration_s(self) -> float:
        """Seconds of an iteration; what staleness forbids to hide comes on top of training."""
        simulated_s = self.simulation.iteration_s
        busy_s = simulated_s - self.trainer_idle_s()
        return max(simulated_s, busy_s + self.unhidden_s()) + self.resync_s()

    @cached_property
    def stages_s(self) -> dict[Share, float]:
        """Seconds in which any device works on a stage, per iteration."""
        return self.simulation.stage_s()

    def stage_s(self, stage: Share) -> float:
        """Returns the seconds of one stage, 0 where there is none."""
        return self.stages_s.get(stage, 0.0)

    def role_s(self, stage: str, role: Role) -> float:
        """Returns the seconds in which a kind of role works in a stage, per iteration."""
        return self._seconds(
            lambda task: (
                task.stage == stage and task.role is not None and kind_of(task.role) == role
            )
        )

    def operation_s(self, operation: str, role: Role | None = None) -> float:
        """Returns the seconds of an operation, of one role or of all, per iteration."""
        return self._seconds(lambda task: task.operation == operation and role in (None, task.role))

    def generation_s(self) -> float:
        """Returns the seconds of the generation stage as the system's timers see it."""
        if self.setting.times_two_stages:
            return self.stage_s("generate") + self.stage_s("score")
        return self.stage_s("generate")

    def unhidden_s(self) -> float:
        """Returns the generation that may not run while the iteration before trains.

        Where at most a share of the samples may be of older weights, so much is generated ahead.
        """
        share = self.setting.staleness
        is_apart = "shadow_actor" in self.setting.plan.placement
        return (1 - share) * self.stage_s("generate") if is_apart and 0 < share < 1 else 0.0

    def resync_s(self) -> float:
        """Returns the transfers of weights within an iteration, beyond the one at its end.

        A trainer that hands over its weights after every few updates waits for each. Source: verl,
        fully asynchronous trainer: an update of its counter takes `require_batches` mini-batches.
        """
        variant = self.setting.case.variant
        every = _count(variant.get("sync_every", ""))
        if "shadow_actor" not in self.setting.plan.placement or not every:
            return 0.0
        workload = self.setting.request.workload
        fetched = _count(variant.get("require_batches", "")) or 1
        transfers = workload.mini_batches * workload.epochs / (every * fetched)
        return max(0.0, transfers - 1) * self.stage_s("sync")

    def trainer_idle_s(self) -> float:
        """Returns the seconds per iteration in which the devices that train only wait."""
        actor = next(g for g in self.simulation.groups if "actor" in g.roles)
        busy_s = self._seconds(lambda task: task.group == actor.name)
        return max(0.0, self.simulation.iteration_s - busy_s)

    def _seconds(self, is_meant: Callable[[Task], bool]) -> float:
        window = self.simulation.window
        total_s = 0.0
        for item, _, start_s, end_s, _ in self.simulation.activities:
            if isinstance(item, Transfer) or not window.first <= item.iteration <= window.last:
                continue
            if is_meant(item):
                total_s += end_s - start_s
        return total_s / window.num_iterations


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def course_of(setting: Setting) -> Course:
    """Returns the simulated course of a case, with the largest batch where it asks for that."""
    if setting.fills_memory:
        setting = setting.with_samples(largest_batch(setting) * setting.num_generating)
    return Course(setting, _evaluated(setting))


def largest_batch(setting: Setting) -> int:
    """Returns the most samples per generating device that fit, at least 1, at most as stated."""
    if (smaller := _on_fewest_nodes(setting)) is not None:
        return largest_batch(smaller)
    most = 1024
    limit = setting.case.variant.get("prompts_max", "")
    if limit.isdecimal():
        most = max(1, int(limit) // setting.num_generating)
    evaluation = _evaluated(setting.with_samples(setting.num_generating))
    assert evaluation.plan.predicted is not None
    found = evaluation.plan.predicted.max_batch or 1
    return max(1, min(most, found))


def _on_fewest_nodes(setting: Setting) -> Setting | None:
    """The same case on the fewest nodes that hold it, where its batch is kept on more.

    Whole copies of the weights need as much on any number of nodes, so there it is one.
    """
    cluster = setting.request.cluster
    node, nodes = len(cluster.nodes[0].devices), 1
    if not setting.keeps_batch or "shadow_actor" in setting.plan.placement:
        return None
    while nodes < len(cluster.nodes):
        smaller = setting.on(nodes * node)
        is_whole = smaller.plan.placement["actor"].zero_stage < _SHARDED
        is_possible = smaller.strategy != "interleaved_2" or nodes > 1
        if is_possible and (is_whole or _evaluated(smaller).fit.is_feasible):
            return smaller
        nodes *= 2
    return None


def _evaluated(setting: Setting) -> Evaluation:
    parts = min(setting.rollout_parts, setting.request.workload.num_samples)
    plan = replace(setting.plan, rollout_micro_batches=parts)
    return evaluate(setting.request, plan, requires_fit=False)
