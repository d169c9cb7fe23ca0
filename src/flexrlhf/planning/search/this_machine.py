"""The plans of a run that is trained here: one device, and what it is expected to take."""

from __future__ import annotations

from collections.abc import Mapping

from flexrlhf.config.resolution import placement_of, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.costs.profiled.profile import Profile
from flexrlhf.planning.costs.profiled.setting import profile_of
from flexrlhf.planning.placement.choices import choices_of
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.one_device import expected_sequences, predict_one_device
from flexrlhf.planning.search.request import PlanRequest


def this_machine_plans(config: RunConfig) -> list[Plan]:
    """Returns the only plan of each stage, with a prediction where its models' sizes are known.

    Lengths are those that the config expects: no row is read.

    Args:
        config: of the run, resolved; every stage runs on this machine.

    Raises:
        ConfigError: the profile cannot be read, or is none.
        PlanError: the placement asks for more than one device can do.
    """
    plans: list[Plan] = []
    earlier: dict[str, PlanRequest] = {}
    profiles: dict[str, Profile | None] = {}
    for name, stage in config.stage_configs():
        plan = one_device_plan(spec_of(stage), choices_of(placement_of(stage)))
        key = str(stage.cluster)
        if key not in profiles:
            profiles[key] = profile_of(stage.cluster)
        profile = profiles[key]
        request = None if profile is None else _request(stage, profile, earlier)
        if profile is not None and request is not None:
            earlier[name] = request
            sequences = expected_sequences(stage, request)
            predicted = predict_one_device(
                stage,
                plan,
                profile,
                request.models,
                sequences,
                speculation=request.engine.speculation,
            )
            plan = plan if predicted is None else predicted.plan
        plans.append(plan)
    return plans


def _request(
    config: RunConfig, profile: Profile, earlier: Mapping[str, PlanRequest]
) -> PlanRequest | None:
    """Returns the request of a stage; None where a model's sizes are not on this machine."""
    try:
        return request_from(config, profile.cluster, earlier)
    except (ConfigError, KeyError):  # a later stage names one whose sizes are not known
        return None
