"""What is to be placed: everything that the search reads, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import SHADOWS, Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import DEFAULT, Calibration
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.memory import Engine
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.search.worker_run import WorkerRun

Objective = Literal["throughput", "cost"]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One stage of a run on a cluster."""

    spec: AlgorithmSpec
    cluster: Cluster
    models: Mapping[Role, HeldModel]
    """Of the algorithm's roles; a role without one is a function that costs nothing here."""
    workload: Workload
    engine: Engine = field(default_factory=Engine)
    """What the software that generates does; its split is the search's to choose."""
    calibration: Calibration = DEFAULT
    rollout_micro_batches: int | None = None
    """Parts that are generated and scored on their own; None: as many as are best."""
    sync_every: int | None = 1
    """Iterations from one update of the generating weights to the next; None: the search's choice
    within the staleness that is allowed."""
    max_staleness: int = 0
    memory_fill: float = 0.95
    """Share of a device's memory that may be used. Source: FlexRLHF fills to 95 %."""
    shares_by_speed: bool = False
    """Replicas get work by their speeds, not as many tokens each: `placement.balance`."""
    objective: Objective = "throughput"
    max_p99_iteration_s: float | None = None
    runnable: bool = False
    """Only what workers can run is looked at; else plans may be for export only."""
    workers: WorkerRun | None = None
    """What a profile of the machine says; None: times come from `calibration`."""

    def model_of(self, role: Role) -> HeldModel | None:
        """Returns the model of a role; a shadow holds its original's, without training it."""
        for original, shadow in SHADOWS.items():
            if role == shadow and original in self.models:
                return replace(self.models[original], is_trained=False, lora_rank=None)
        return self.models.get(role)
