"""A case made whole: what is stated, and rules for the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from flexrlhf.core.errors import nearest
from flexrlhf.core.names import StrategyName
from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import Case
from flexrlhf.planning.cases.degrees import DegreeRules
from flexrlhf.planning.cases.devices import Placing, pools_of, strategy_of
from flexrlhf.planning.cases.facts import Facts
from flexrlhf.planning.cases.hardware import hardware_of
from flexrlhf.planning.cases.lengths_of import CaseLengths, lengths_of
from flexrlhf.planning.cases.roles import roles_of
from flexrlhf.planning.cases.searched import LayoutSearch
from flexrlhf.planning.cases.systems import SYSTEMS, UNSTATED_SYSTEM, System
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.classes import class_of
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.request import PlanRequest

_PLANNED_AS: Final[dict[str, StrategyName]] = {
    "colocated": "colocated",
    "interleaved_1": "interleaved_1",
    "interleaved_2": "interleaved_2",
    "disaggregated": "disaggregated",
    "async_disaggregated": "disaggregated",
    "reward_on_one": "reward_on_one",
}
_USUAL_PROMPTS: Final = {2023: 512, 2024: 512, 2025: 64}
_USUAL_GROUP: Final = {"grpo": 8, "dapo": 16}
_USUAL_UPDATE: Final = 128
"""Samples of an update in the scripts of DeepSpeed-Chat and OpenRLHF."""
_ONE_UPDATE_SINCE: Final = 2025
_ASYNCHRONOUS: Final = ("async_disaggregated", "async_colocated")
_STREAMED_PARTS: Final = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that a prediction needs."""

    case: Case
    system: System
    strategy: str
    request: PlanRequest
    plan: Plan
    rollout_parts: int
    """Parts that are generated and scored on their own."""
    fills_memory: bool
    """The batch is the largest that fits; the workload's count is only a beginning."""

    @property
    def num_devices(self) -> int:
        """Devices of the whole cluster."""
        return self.request.cluster.num_devices

    @property
    def num_generating(self) -> int:
        """Devices that generate."""
        placement = self.plan.placement
        return len(placement.get("shadow_actor", placement["actor"]).devices)

    @property
    def leaves_out_scoring(self) -> bool:
        """Whether FlexRLHF's authors timed it: their samples/s know generation and training."""
        is_theirs = self.case.variant.get("compare") == "ratio"
        return self.system.is_stage_timed or (self.system.name == "DeepSpeed-Chat" and is_theirs)

    @property
    def times_two_stages(self) -> bool:
        """Whether scoring counts as generation, since the source times two stages only.

        Benchmarks that state both the engine and its batch do.
        """
        case = self.case
        is_stated = case.word("generation_engine") and case.number("generation_batch_per_gpu")
        return bool(is_stated)

    def with_samples(self, num_samples: int) -> Setting:
        """Returns the same with another batch."""
        workload = replace(self.request.workload, num_samples=num_samples)
        return replace(self, request=replace(self.request, workload=workload))


def setting_of(
    case: Case, taken: Assumptions, *, calibration: Calibration | None = None
) -> Setting:
    """Returns a case with everything that it leaves open filled in by rules.

    Args:
        case: what is stated.
        taken: notes what is assumed.
        calibration: instead of that of the case's class.
    """
    system = _system_of(case, taken)
    strategy = strategy_of(case, taken)
    hardware = hardware_of(case, system, taken)
    cluster = hardware.cluster
    pools = pools_of(case, strategy, cluster, taken)
    roles = roles_of(case, system, taken, is_apart=bool(pools.generate))
    workload, fills = _workload(case, system, strategy, taken, cluster.num_devices)
    devices = Placing(case, system, cluster, roles).devices(strategy, pools)
    facts = Facts(case, system, cluster, roles.models, workload, taken, fills_memory=fills)
    degrees = DegreeRules(facts).degrees(devices)
    if calibration is None:
        calibration = class_of(
            cluster.device_type(0).name if hardware.is_stated else None,
            year=system.year,
            part=strategy,
        )
    if strategy == "searched":
        taken.note("each call has the layout that our costs find best for it")
        search = LayoutSearch(cluster, roles.models, workload, calibration)
        degrees = search.improve(degrees)
    is_async = strategy in _ASYNCHRONOUS and case.variant.get("staleness") != "0"
    request = PlanRequest(
        roles.spec,
        cluster,
        roles.models,
        workload,
        engine=degrees.engine,
        calibration=calibration,
        max_staleness=1 if is_async else 0,
    )
    plan = Plan(
        rank=None,
        strategy=_PLANNED_AS.get(strategy, "custom"),
        feasible=True,
        why="published",
        placement=degrees.placement,
    )
    parts = 1
    if strategy == "disaggregated" and workload.num_samples >= _STREAMED_PARTS:
        parts = taken.take("rollout parts", _STREAMED_PARTS, "streamed within an iteration")
    return Setting(case, system, strategy, request, plan, parts, fills)


def _system_of(case: Case, taken: Assumptions) -> System:
    stated = case.word("system")
    if stated is None:
        taken.note(f"system: as {UNSTATED_SYSTEM.name}")
        return UNSTATED_SYSTEM
    system = SYSTEMS.get(stated.lower())
    if system is None:
        hint = nearest(stated.lower(), SYSTEMS)
        taken.note(f"system {stated} is not known, taken as {UNSTATED_SYSTEM.name}. {hint}".strip())
        return UNSTATED_SYSTEM
    return system


def _workload(
    case: Case, system: System, strategy: str, taken: Assumptions, num_devices: int
) -> tuple[Workload, bool]:
    lengths = _padded(system, lengths_of(case, taken, usual_limit=system.usual_tokens))
    if strategy == "async_colocated" or case.variant.get("partial_rollout") == "yes":
        # What is not finished goes on in the next iteration, so the batch never runs empty.
        lengths = replace(lengths, response=Lengths.fixed(lengths.response.mean))
    group = _group(case, taken)
    samples, fills = _samples(case, system, group, taken, num_devices)
    mini_batches = _mini_batches(case, system, samples, taken, fills=fills)
    return (
        Workload(
            num_samples=samples,
            prompt=lengths.prompt,
            response=lengths.response,
            samples_per_prompt=group,
            mini_batches=mini_batches,
            epochs=1 if case.metric == "run_time" else case.count("epochs"),
            logit_tokens=float("inf") if system.pads else 1024.0,
            sequence_split=_sequence_split(case, system, lengths, taken),
            speedup=0.5 if case.word("algorithm") == "remax" else 1.0,
        ),
        fills,
    )


def _sequence_split(case: Case, system: System, lengths: CaseLengths, taken: Assumptions) -> int:
    """Replicas that share a sequence: as stated, or as many as its tokens ask for."""
    if case.number("cp_train") is not None:
        return case.count("cp_train")
    longest = lengths.prompt.longest + lengths.response.longest
    split = 1
    while longest / split > system.micro_batch_tokens and not system.pads:
        split *= 2
    return split if split == 1 else taken.take("cp_train", split, "the longest sequence")


def _padded(system: System, lengths: CaseLengths) -> CaseLengths:
    prompt, response = lengths.prompt, lengths.response
    if system.pads_prompts:
        prompt = Lengths.fixed(prompt.longest)
    if system.pads:
        response = Lengths.fixed(response.longest)
    return CaseLengths(prompt, response)


def _group(case: Case, taken: Assumptions) -> int:
    if case.number("samples_per_prompt") is not None or case.number("prompts_per_iteration"):
        return case.count("samples_per_prompt")
    usual = _USUAL_GROUP.get(case.word("algorithm") or "", 1)
    return usual if usual == 1 else taken.take("samples_per_prompt", usual, "usual")


def _samples(
    case: Case, system: System, group: int, taken: Assumptions, num_devices: int
) -> tuple[int, bool]:
    prompts = case.number("prompts_per_iteration")
    if prompts is not None:
        return max(1, round(prompts)) * group, False
    if case.number("train_batch_samples") is not None:
        samples = case.count("train_batch_samples") * case.count("num_minibatches")
        return taken.take("samples", samples, "updates x their batch"), False
    if system.fills_memory:
        taken.note("samples: the largest batch that fits")
        return num_devices, True
    usual = _USUAL_PROMPTS[system.year]
    return taken.take("prompts_per_iteration", usual, "usual") * group, False


def _mini_batches(
    case: Case, system: System, samples: int, taken: Assumptions, *, fills: bool
) -> int:
    stated = case.number("num_minibatches")
    if stated is not None:
        return max(1, min(round(stated), samples))
    batch = case.number("train_batch_samples")
    if batch is not None:
        return max(1, round(samples / batch))
    if system.year < _ONE_UPDATE_SINCE and not fills:
        updates = max(1, round(samples / _USUAL_UPDATE))
        return taken.take("num_minibatches", updates, f"an update for {_USUAL_UPDATE} samples")
    return taken.take("num_minibatches", 1, "one update")
