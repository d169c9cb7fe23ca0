"""The plans of a whole run: one search per stage."""

from __future__ import annotations

from dataclasses import dataclass

from flexrlhf.config.cluster import ClusterDescription, ProfiledMachine
from flexrlhf.config.resolution import placement_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.setting import requested_cluster
from flexrlhf.planning.costs.profiled.profile import load_profile
from flexrlhf.planning.placement.choices import choices_of
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.plans import RankedPlans, ranked_plans
from flexrlhf.planning.search.request import PlanRequest


@dataclass(frozen=True, slots=True)
class StagePlans:
    """One stage, what was asked, and the plans that answer it."""

    name: str
    request: PlanRequest
    ranked: RankedPlans


def stage_plans(config: RunConfig) -> list[StagePlans]:
    """Returns the ranked plans of each stage; a plain run is one.

    Args:
        config: of the run, resolved.

    Raises:
        ConfigError: the cluster or a model cannot be found.
        PlanError: the strategy is unknown, or what the user says cannot be had.
    """
    found: list[StagePlans] = []
    earlier: dict[str, PlanRequest] = {}
    for name, stage in config.stage_configs():
        request = request_from(stage, _cluster(stage.cluster), earlier)
        earlier[name] = request
        ranked = ranked_plans(request, choices_of(placement_of(stage)))
        found.append(StagePlans(name, request, ranked))
    return found


def _cluster(setting: str | ProfiledMachine | ClusterDescription) -> Cluster:
    if isinstance(setting, ProfiledMachine):
        return load_profile(setting.profile).cluster
    return requested_cluster(setting)
