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
from flexrlhf.planning.cases.roles import roles_of
from flexrlhf.planning.cases.searched import LayoutSearch
from flexrlhf.planning.cases.systems import SYSTEMS, UNSTATED_SYSTEM, System
from flexrlhf.planning.cases.workload_of import workload_of
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.classes import class_of
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
_ASYNCHRONOUS: Final = ("async_disaggregated", "async_colocated")
_STREAMED_PARTS: Final = 4
_SAFE_FILL: Final = 0.95
"""Share of a device's memory that a batch of choice may take; one that is called the largest that
fits goes to the edge."""
_WRITTEN_BYTES: Final = 2
"""Bytes per parameter of weights in files."""


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
    def staleness(self) -> float:
        """Largest share of samples from older weights, 0 where it is not stated."""
        stated = self.case.variant.get("staleness", "")
        return float(stated) if stated.replace(".", "", 1).isdecimal() else 0.0

    @property
    def num_generating(self) -> int:
        """Devices that generate."""
        placement = self.plan.placement
        return len(placement.get("shadow_actor", placement["actor"]).devices)

    @property
    def written_s(self) -> float:
        """Seconds per micro-batch in which a trainer, measured alone, writes weights to files."""
        passes = self.system.passes_per_write if self.strategy == "trainer_only" else 0
        model = self.request.models["actor"]
        if not passes or model.lora_rank:
            return 0.0
        num_bytes = model.num_params * _WRITTEN_BYTES
        return num_bytes / self.request.calibration.file_bandwidth / passes

    @property
    def is_stage_timed(self) -> bool:
        """Whether FlexRLHF's authors timed it: their shares know generation and training alone."""
        return self.system.is_stage_timed or self._is_their_baseline

    @property
    def keeps_batch(self) -> bool:
        """Whether the largest batch per device is found on the fewest nodes and kept on more."""
        return self.system.keeps_batch or self._is_their_baseline

    @property
    def _is_their_baseline(self) -> bool:
        """Whether FlexRLHF's authors ran DeepSpeed-Chat, to compare with it."""
        is_compared = self.case.variant.get("compare") == "ratio"
        return is_compared and self.system.name == "DeepSpeed-Chat"

    @property
    def leaves_out_scoring(self) -> bool:
        """Whether its samples/s, too, are those of generation and training alone."""
        return self.is_stage_timed and "shadow_actor" not in self.plan.placement

    @property
    def times_two_stages(self) -> bool:
        """Whether scoring counts as generation, since the source times two stages only.

        Benchmarks that state both the engine and its batch do.
        """
        case = self.case
        is_stated = case.word("generation_engine") and case.number("generation_batch_per_gpu")
        return bool(is_stated)

    def on(self, num_devices: int) -> Setting:
        """Returns the same case on another number of devices."""
        numbers = {**self.case.numbers, "n_gpus": float(num_devices)}
        case = replace(self.case, numbers=numbers)
        return setting_of(case, Assumptions(), calibration=self.request.calibration)

    def with_samples(self, num_samples: int) -> Setting:
        """Returns the same with another batch."""
        updates = min(self.request.workload.mini_batches, num_samples)
        workload = replace(self.request.workload, num_samples=num_samples, mini_batches=updates)
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
    workload, fills = workload_of(case, system, strategy, cluster.num_devices, taken)
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
        memory_fill=1.0 if fills else _SAFE_FILL,
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
