"""Whether speculation is expected to make generation faster, and so whether `auto` takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from flexrlhf.config.cluster import ProfiledMachine, RayCluster, is_one_device
from flexrlhf.config.resolution import settled, spec_of
from flexrlhf.config.schema import RunConfig, Sections
from flexrlhf.core.errors import ConfigError
from flexrlhf.core.model_families import NATIVE_FAMILIES
from flexrlhf.core.names import SpeculationName
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.decoding import Decoder
from flexrlhf.planning.costs.groups import tensor_group
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.profiled.constants import ProfiledCosts
from flexrlhf.planning.costs.profiled.profile import load_profile
from flexrlhf.planning.costs.profiled.seconds import ModelSeconds
from flexrlhf.planning.costs.profiled.setting import profile_of
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.stage_plans import cluster_of

C = TypeVar("C", bound=Sections)


@dataclass(frozen=True, slots=True)
class SpeculationOutlook:
    """What a stage's speculation is expected to do."""

    by: SpeculationName
    speedup: float
    """Of a step's tokens, with all answers running that may; below 1 it makes them slower."""
    acceptance: float
    """That was reckoned with."""
    is_taken: bool

    def to_json(self) -> dict[str, Any]:
        """Returns the `speculation` object of a plan document."""
        return asdict(self)


def with_speculation(
    config: RunConfig, joined: Cluster | None = None
) -> tuple[RunConfig, Mapping[str, SpeculationOutlook]]:
    """Returns the config with `rollout.speculation: auto` settled, and what each stage expects.

    `auto` becomes `none` where no gain is expected, or nothing can be said.

    Args:
        config: a resolved run.
        joined: the machines of a Ray cluster that is there already.
    """
    outlooks: dict[str, SpeculationOutlook] = {}
    earlier: dict[str, PlanRequest] = {}
    for name, stage in config.stage_configs():
        found = _outlook(name, stage, joined, earlier)
        if found is not None:
            outlooks[name] = found
    stages = tuple(_settled(stage, outlooks.get(stage.name)) for stage in config.stages)
    whole = outlooks.get(config.algorithm.name) if not config.stages else None
    return _settled(config, whole).model_copy(update={"stages": stages}), outlooks


def _settled(config: C, outlook: SpeculationOutlook | None) -> C:
    if config.rollout.speculation != "auto":
        return config
    taken = outlook is not None and outlook.is_taken
    draft = config.rollout.draft_model if taken else None
    by = outlook.by if outlook is not None and taken else "none"
    rollout = config.rollout.model_copy(update={"speculation": by, "draft_model": draft})
    return config.model_copy(update={"rollout": rollout})


def _outlook(
    name: str, config: RunConfig, joined: Cluster | None, earlier: dict[str, PlanRequest]
) -> SpeculationOutlook | None:
    """Of one stage; None where it does not speculate, or its models' sizes are not known."""
    rollout = config.rollout
    by = rollout.speculation
    if by == "auto":
        by = "prompt_lookup" if rollout.draft_model is None else "draft_model"
    asked = config.model_copy(update={"rollout": rollout.model_copy(update={"speculation": by})})
    try:
        request = request_from(asked, joined or cluster_of(config.cluster), earlier)
    except (ConfigError, KeyError):  # a later stage names one whose sizes are not known
        return None
    earlier[name] = request
    if by == "none" or rollout.engine != "native" or not spec_of(config).generates:
        return None
    speedup = expected_speedup(request, _costs(config), _rows(config))
    can_be = request.models["actor"].shape.family in {None, *NATIVE_FAMILIES}
    is_taken = rollout.speculation != "auto" or (can_be and speedup > 1)
    return SpeculationOutlook(by, speedup, settled(rollout.speculative_acceptance), is_taken)


def expected_speedup(request: PlanRequest, costs: ProfiledCosts | None, rows: float) -> float:
    """Returns how much faster answers get their tokens by the request's speculation.

    Args:
        request: of a stage that speculates.
        costs: of the machine; None: those of the catalogue, for one device of the cluster.
        rows: answers that are generated at one time.
    """
    model, workload = request.models["actor"], request.workload
    context = workload.prompt.mean + workload.response.mean / 2
    speculation = request.engine.speculation
    if costs is not None:
        seconds = ModelSeconds(model, costs)
        plain_s = seconds.token_s(rows, context, None)
        return plain_s / seconds.token_s(rows, context, speculation)
    device = request.cluster.devices[0]
    alone = tensor_group(request.cluster, (device,), Layout())
    speculating = Decoder(
        model,
        request.engine,
        request.cluster.device_type(device),
        request.calibration,
        alone,
        alone,
    )
    plain = replace(speculating, engine=replace(request.engine, speculation=None))
    return plain.step_s(rows, context) / speculating.step_s(rows, context)


def _rows(config: RunConfig) -> float:
    """Answers that run at one time where one engine has all: speculation gains least then."""
    prompts = -(-config.training.prompts_per_iteration // config.rollout.micro_batches)
    answers = prompts * config.rollout.samples_per_prompt
    return float(min(settled(config.rollout.max_sequences), answers))


def _costs(config: RunConfig) -> ProfiledCosts | None:
    """What a profile says of the machines, where there is one for them."""
    setting = config.cluster
    if is_one_device(setting):
        profile = profile_of(setting)
        costs = None if profile is None else profile.costs
    elif isinstance(setting, ProfiledMachine | RayCluster) and setting.profile is not None:
        workers = load_profile(setting.profile).workers
        costs = None if workers is None else workers.costs
    else:
        return None
    is_measured = costs is not None and costs.dtype == config.training.precision
    return costs if is_measured else None
