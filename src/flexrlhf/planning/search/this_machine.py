"""The plans of a run that is trained here: one device, and what it is expected to take."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flexrlhf.config.resolution import placement_of, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.digits import three_digits
from flexrlhf.core.errors import ConfigError, PlanError
from flexrlhf.planning.costs.profiled.profile import Profile
from flexrlhf.planning.costs.profiled.setting import profile_of
from flexrlhf.planning.placement.choices import choices_of
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.placement.prediction import Prediction
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.one_device import expected_sequences, predict_one_device
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.stage_words import STAGE_WORDS, stages_taken

_GIB: Final = 2**30


def this_machine_plans(config: RunConfig, *, begins: bool = False) -> list[Plan]:
    """Returns the only plan of each stage, with a prediction where its models' sizes are known.

    Lengths are those that the config expects: no row is read.

    Args:
        config: of the run, resolved; every stage runs on this machine.
        begins: the run begins now: it looks itself at the memory that its models find free.

    Raises:
        ConfigError: the profile cannot be read, or is none.
        PlanError: the placement asks for more than one device can do, or a stage is expected to
            need more memory than the machine has.
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
        plan = _planned(name, stage, plan, (profile, earlier))
        if profile is not None and plan.predicted is not None and not begins:
            _check_memory(name, plan.predicted, profile)
        plans.append(plan)
    return plans


def _planned(
    name: str,
    config: RunConfig,
    plan: Plan,
    known: tuple[Profile | None, dict[str, PlanRequest]],
) -> Plan:
    """Returns the plan of a stage with its prediction, or with the reason why it has none."""
    profile, earlier = known
    if profile is None:
        return _unpredicted(plan, "no profile is known of a machine like this (`flexrlhf profile`)")
    try:
        request = request_from(config, profile.cluster, earlier)
    except ConfigError as error:
        return _unpredicted(plan, str(error).splitlines()[0].rstrip("."))
    except KeyError as error:
        return _unpredicted(plan, f"the sizes of what stage {error} makes are not known")
    earlier[name] = request
    sequences = expected_sequences(config, request)
    found = predict_one_device(
        config,
        plan,
        profile,
        request.models,
        sequences,
        speculation=request.engine.speculation,
    )
    if found is None:
        return _unpredicted(plan, _unmeasured(config, profile))
    predicted = found.plan.predicted
    assert predicted is not None, "it was simulated"
    iteration_s = three_digits(predicted.iteration_s)
    why = f"{plan.why.rstrip('.')}: {iteration_s} s an iteration ({stages_taken(predicted)})."
    return replace(found.plan, why=why)


def _unpredicted(plan: Plan, reason: str) -> Plan:
    return replace(plan, why=f"{plan.why} Its time is not predicted: {reason}.")


def _unmeasured(config: RunConfig, profile: Profile) -> str:
    """Says what of a config no profile measures."""
    if config.rollout.engine != "native":
        return f"profiles measure the engine native, not {config.rollout.engine}"
    return f"the profile was measured in {profile.costs.dtype}, not {config.training.precision}"


def _check_memory(name: str, predicted: Prediction, profile: Profile) -> None:
    """Checks that a stage can be held here at all.

    Raises:
        PlanError: it needs more than all memory of the machine.
    """
    (peaks,) = predicted.peak_bytes.values()
    stage = max(peaks, key=lambda s: peaks[s])
    if peaks[stage] <= profile.memory_bytes:
        return
    work = STAGE_WORDS["score" if stage == "advantage" else stage]
    raise PlanError(
        f"No placement of {name} fits: {work} is expected to need {peaks[stage] / _GIB:,.1f} GiB, "
        f"and this machine has {profile.memory_bytes / _GIB:,.1f} GiB.",
        "The weights, states and caches of all roles together fit into its memory.",
        "Take smaller models, fewer or shorter answers, or plan for other machines (cluster).",
    )
