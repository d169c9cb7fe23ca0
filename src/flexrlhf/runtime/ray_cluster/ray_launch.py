"""From a checked config and a plan to workers on many devices that hold everything a run needs."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

from flexrlhf.config.resolution import batch_sizes, settled, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.clock import Clock
from flexrlhf.core.errors import WorkerLost
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.one_device import CPU_TOKENS
from flexrlhf.planning.workflow.shape import IterationShape
from flexrlhf.runtime.datasets import RunData
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.work_order import Meeting, WorkOrder
from flexrlhf.runtime.launch import longest_sequence
from flexrlhf.runtime.micro_batch_limit import ItemLimit, MicroBatchLimit, TokenLimit
from flexrlhf.runtime.ray_cluster.processes import RayProcesses
from flexrlhf.runtime.ray_cluster.ray_workers import RayWorkers, gathered
from flexrlhf.runtime.workers import Workers

_JOIN_S: Final = 600.0
"""How long loading and splitting the models may take."""


@dataclass(frozen=True, slots=True)
class LaunchedOnRay:
    """Workers that have joined each other, and what the loop must know of them."""

    processes: RayProcesses
    device_map: DeviceMap
    config: RunConfig
    spec: AlgorithmSpec
    shape: IterationShape

    def connect(self, clock: Clock) -> Workers:
        """Takes the workers into use, with a clock for their spans."""
        return RayWorkers(self.processes, self.device_map, clock)


def launch_on_ray(
    config: RunConfig, plan: Plan, data: RunData, processes: RayProcesses
) -> LaunchedOnRay:
    """Starts the workers of a plan and lets them load their roles.

    Args:
        config: a resolved run of one stage.
        plan: where its roles go.
        data: its rows, of which the lengths are needed here.
        processes: that were started for as many workers.

    Raises:
        ConfigError: a model, reward or limit is wrong; nothing was trained.
        WorkerLost: a worker died or did not join in time.
    """
    spec = spec_of(config)
    device_map = DeviceMap(plan, spec)
    longest = longest_sequence(config, spec, data)
    item = 2 * longest if spec.data == "preferences" else longest
    limit = _limit(config, plan, spec, item)
    config = _with_limit(config, limit)
    shape = _shape(config, plan, spec, limit, item)
    order = WorkOrder(config, spec, plan, shape, limit, longest, secrets.token_hex(16))
    _join(order, processes)
    return LaunchedOnRay(processes, device_map, config, spec, shape)


def _join(order: WorkOrder, processes: RayProcesses) -> None:
    def on_all(method: str, *arguments: Any) -> list[Any]:
        calls = [
            getattr(handle, method).options(concurrency_group="work").remote(*arguments)
            for handle in processes.handles
        ]
        return gathered(calls, _JOIN_S, lambda: _too_slow(method), lambda rank: f"worker {rank}")

    calls = [
        handle.open.options(concurrency_group="work").remote(order, rank, processes.hosts[rank])
        for rank, handle in enumerate(processes.handles)
    ]
    addresses = gathered(calls, _JOIN_S, lambda: _too_slow("open"), lambda rank: f"worker {rank}")
    host = processes.hosts[0] or "127.0.0.1"
    first = processes.handles[0].open_store.options(concurrency_group="work")
    (port,) = gathered(
        [first.remote(host, len(addresses))],
        _JOIN_S,
        lambda: _too_slow("open_store"),
        lambda rank: f"worker {rank}",
    )
    on_all("join", Meeting(tuple(addresses), host, port))


def _too_slow(method: str) -> WorkerLost:
    return WorkerLost(
        f"The workers did not come through {method!r} within {_JOIN_S:g} s.",
        "They load and split the models in that time.",
        "Look at the disk and the network between the machines.",
    )


def _limit(config: RunConfig, plan: Plan, spec: AlgorithmSpec, item: int) -> MicroBatchLimit:
    """The user's limit, else the plan's, else what costs little memory."""
    training = config.training
    if training.micro_batch_samples is not None:
        return ItemLimit(training.micro_batch_samples)
    if training.micro_batch_tokens != "auto":
        return TokenLimit(training.micro_batch_tokens)
    planned = [plan.placement[role].micro_batch_samples for role in spec.trained]
    given = [samples for samples in planned if samples is not None]
    return ItemLimit(min(given)) if given else TokenLimit(max(item, CPU_TOKENS))


def _with_limit(config: RunConfig, limit: MicroBatchLimit) -> RunConfig:
    """Returns the config with the limit written out, so that a resumed run has the same."""
    update: dict[str, Any] = (
        {"micro_batch_samples": limit.max_items}
        if isinstance(limit, ItemLimit)
        else {"micro_batch_tokens": limit.max_tokens}
    )
    return config.model_copy(update={"training": config.training.model_copy(update=update)})


def _shape(
    config: RunConfig, plan: Plan, spec: AlgorithmSpec, limit: MicroBatchLimit, item: int
) -> IterationShape:
    sizes = batch_sizes(config)
    parts = plan.rollout_micro_batches or config.rollout.micro_batches
    per_replica = [
        -(-sizes.mini_batch_samples // plan.placement[role].data_parallel) for role in spec.trained
    ]
    return IterationShape(
        num_samples=sizes.samples_per_iteration,
        rollout_micro_batches=parts if spec.generates else 1,
        mini_batches=sizes.num_mini_batches,
        micro_batches_per_mini_batch=max(limit.bound(items, item) for items in per_replica),
        epochs=config.algorithm.epochs,
        sync_every=plan.sync_every or settled(config.weights.sync_every),
        max_staleness=config.weights.max_staleness,
    )
