"""The plans of a whole run: one search per stage, and the cost of going from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flexrlhf.config.cluster import ClusterSetting, ProfiledMachine, RayCluster, can_train
from flexrlhf.config.resolution import placement_of, role_origin
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.setting import requested_cluster
from flexrlhf.planning.costs.profiled.memory import in_processes
from flexrlhf.planning.costs.profiled.profile import load_profile
from flexrlhf.planning.costs.profiled.setting import CORE
from flexrlhf.planning.placement.choices import choices_of
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.one_device import expected_sequences
from flexrlhf.planning.search.plans import RankedPlans, ranked_plans
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.switching import (
    HeldWeights,
    best_together,
    held_weights,
    switch_s,
)
from flexrlhf.planning.search.worker_run import worker_run


@dataclass(frozen=True, slots=True)
class StagePlans:
    """One stage, what was asked, and the plans that answer it."""

    name: str
    request: PlanRequest
    ranked: RankedPlans
    switch_s: float | None = None
    """Seconds from the stage before to this one; None for the first."""


@dataclass(frozen=True, slots=True)
class _Searched:
    """A stage with all its plans, before one is chosen for the sake of the others."""

    name: str
    config: RunConfig
    request: PlanRequest
    ranked: RankedPlans

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Those that fit, best first."""
        return self.ranked.plans[: len(self.ranked.found)]

    @property
    def work_s(self) -> list[float]:
        """Seconds of all iterations under each plan."""
        iterations = self.config.training.iterations
        return [iterations * p.predicted.iteration_s for p in self.plans if p.predicted]

    def at_start(self, plan: Plan) -> list[HeldWeights]:
        """What lies where before the first iteration."""
        contents: dict[Role, str] = {}
        for role in self.request.models:
            if origin := role_origin(self.config, role):
                contents[role] = origin.model.path or f"new/{self.name}/{origin.role}"
        return list(held_weights(self.request, plan, contents))

    def at_end(self, plan: Plan) -> list[HeldWeights]:
        """The same after the last: what was trained has become the stage's own."""
        contents: dict[Role, str] = {}
        for role in self.request.models:
            origin = role_origin(self.config, role)
            if role in self.request.spec.trained:
                contents[role] = f"stage:{self.name}/{role}"
            elif origin is not None:
                contents[role] = origin.model.path or f"new/{self.name}/{origin.role}"
        return list(held_weights(self.request, plan, contents))


def stage_plans(
    config: RunConfig, joined: Cluster | None = None, *, advised: bool = True
) -> list[StagePlans]:
    """Returns the ranked plans of each stage; a plain run is one.

    Each stage has its own search. Then the plan of each is chosen that makes the whole run
    shortest, what it takes to go from stage to stage included: it comes first.

    Args:
        config: of the run, resolved.
        joined: the machines of the Ray cluster that `cluster.ray` means.
        advised: also say what another node or more memory would give, which takes longer.

    Raises:
        ConfigError: the cluster or a model cannot be found.
        PlanError: the strategy is unknown, or what the user says cannot be had.
    """
    searched: list[_Searched] = []
    earlier: dict[str, PlanRequest] = {}
    for name, stage in config.stage_configs():
        cluster = joined or cluster_of(stage.cluster)
        request = request_from(stage, cluster, earlier, runnable=can_train(stage.cluster))
        request = with_profile(stage, request)
        earlier[name] = request
        ranked = ranked_plans(request, choices_of(placement_of(stage)), advised=advised)
        searched.append(_Searched(name, stage, request, ranked))
    if len(searched) == 1 or not all(stage.plans for stage in searched):
        return [StagePlans(stage.name, stage.request, stage.ranked) for stage in searched]
    return _chosen_together(searched)


def cluster_of(setting: ClusterSetting) -> Cluster:
    """Returns the machines that `cluster` means, a Ray cluster that is there already excepted.

    Raises:
        ConfigError: a file cannot be read, or does not say what is needed.
    """
    if not isinstance(setting, ProfiledMachine):
        return requested_cluster(setting)
    profile = load_profile(setting.profile)
    if setting.workers is None:
        return profile.cluster
    return profile.workers_cluster(setting.workers, setting.groups)


def with_profile(config: RunConfig, request: PlanRequest) -> PlanRequest:
    """Returns the request with what a profile says of several processes, where the config has one.

    Args:
        config: one stage, resolved.
        request: of the same stage.
    """
    setting = config.cluster
    are_apart = isinstance(setting, RayCluster)
    if not isinstance(setting, ProfiledMachine | RayCluster) or setting.profile is None:
        return request
    if not are_apart and setting.workers is None:
        return request
    costs = load_profile(setting.profile).workers
    if costs is None or request.cluster.nodes[0].device.name != CORE:
        return request
    sequences = expected_sequences(config, request)
    run = worker_run(
        config, costs, sequences, are_apart=are_apart, speculation=request.engine.speculation
    )
    calibration = in_processes(request.calibration, costs.costs.memory)
    return replace(request, workers=run, calibration=calibration)


def _chosen_together(stages: Sequence[_Searched]) -> list[StagePlans]:
    switches = [_switches(a, b) for a, b in pairwise(stages)]
    chosen = best_together([stage.work_s for stage in stages], switches)
    before = [None, *chosen]
    found: list[StagePlans] = []
    for place, (stage, index) in enumerate(zip(stages, chosen, strict=True)):
        earlier = before[place]
        seconds = None if earlier is None else switches[place - 1][earlier][index]
        ranked = _with_first(stage.ranked, index)
        found.append(StagePlans(stage.name, stage.request, ranked, seconds))
    return found


def _switches(stage: _Searched, following: _Searched) -> list[list[float]]:
    """Seconds from each plan of a stage to each of the next."""
    cluster, calibration = following.request.cluster, following.request.calibration
    starts = [following.at_start(plan) for plan in following.plans]
    ends = [stage.at_end(plan) for plan in stage.plans]
    return [[switch_s(cluster, calibration, end, start) for start in starts] for end in ends]


def _with_first(ranked: RankedPlans, index: int) -> RankedPlans:
    """Puts the plan first that is best for the run, though another is faster by itself."""
    if index == 0:
        return ranked
    plans, found = list(ranked.plans), list(ranked.found)
    chosen = plans.pop(index)
    why = f"{chosen.why} Chosen all the same: going to it from the stage before takes less."
    plans.insert(0, replace(chosen, why=why, chosen_by=plans[0].chosen_by))
    plans[1] = replace(plans[1], chosen_by=None)
    found.insert(0, found.pop(index))
    fitting = [replace(plan, rank=place) for place, plan in enumerate(plans[: len(found)], start=1)]
    return replace(
        ranked, plans=(*fitting, *plans[len(found) :]), found=tuple(found), gains=None, memory=None
    )
