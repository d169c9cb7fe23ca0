"""What a worker is told before it loads anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.workflow.shape import IterationShape
from flexrlhf.runtime.micro_batch_limit import MicroBatchLimit

DeviceKind = Literal["cpu", "cuda"]
"""What a worker computes on, as torch calls it."""


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """A run as all its workers see it."""

    config: RunConfig
    """Resolved, of one stage, with the folders of earlier stages."""
    spec: AlgorithmSpec
    plan: Plan
    shape: IterationShape
    limit: MicroBatchLimit
    """Of a replica's micro-batch."""
    longest: int
    """Tokens of the longest sequence."""
    secret: str
    """What workers show each other."""
    device: DeviceKind = "cpu"
    """Of every worker."""
    speeds: tuple[float, ...] = ()
    """Of each worker, by rank, as parts of the fastest; empty where they count as equal."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the workers of a run find each other."""

    addresses: tuple[str, ...]
    """Of every worker's parcels, by rank."""
    store_host: str
    store_port: int
    """Of the store in which process groups are agreed on."""
    shares_gpu: bool = False
    """Several workers compute on one GPU, a layout for tests: NCCL refuses that, so collectives go
    through host memory."""
