"""From a checked config and a plan to workers on many devices that hold everything a run needs."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from typing import Any, Final

from flexrlhf.config.resolution import batch_sizes, placement_of, settled, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.clock import Clock
from flexrlhf.core.errors import ConfigError
from flexrlhf.core.names import Role
from flexrlhf.core.relative_speeds import stepped
from flexrlhf.learning.transport.server import LOOPBACK
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.one_device import CPU_TOKENS
from flexrlhf.planning.workflow.shape import IterationShape
from flexrlhf.runtime.datasets import RunData
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.work_order import DeviceKind, Meeting, WorkOrder
from flexrlhf.runtime.launch import longest_sequence
from flexrlhf.runtime.micro_batch_limit import ItemLimit, MicroBatchLimit, TokenLimit
from flexrlhf.runtime.ray_cluster.processes import RayProcesses
from flexrlhf.runtime.ray_cluster.ray_workers import RayWorkers
from flexrlhf.runtime.ray_cluster.remote_calls import RemoteCalls
from flexrlhf.runtime.shares import rooms
from flexrlhf.runtime.workers import Workers

logger = logging.getLogger(__name__)

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
    speeds = _speeds(processes) if placement_of(config).balance == "speed" else ()
    order = work_order(config, plan, data, device=processes.device, speeds=speeds)
    _join(order, processes)
    device_map = DeviceMap(plan, order.spec, speeds)
    _log_places(device_map, processes)
    return LaunchedOnRay(processes, device_map, order.config, order.spec, order.shape)


def _speeds(processes: RayProcesses) -> tuple[float, ...]:
    """Lets all workers compute at once, and returns how fast each is beside the others."""
    remote = RemoteCalls(processes, lambda rank: f"worker {rank}", lambda _: "speed")
    ranks = range(len(processes.members))
    calls = [remote.call(rank, "speed", "work", processes.device) for rank in ranks]
    speeds = stepped(remote.values(calls, _JOIN_S))
    logger.info("speeds of the workers: %s", ", ".join(f"{speed:.2f}" for speed in speeds))
    return speeds


def work_order(
    config: RunConfig,
    plan: Plan,
    data: RunData,
    *,
    device: DeviceKind,
    speeds: tuple[float, ...] = (),
) -> WorkOrder:
    """Returns what every worker of a run is told.

    Args:
        config: a resolved run of one stage.
        plan: where its roles go.
        data: its rows, of which the lengths are needed here.
        device: what the workers compute on.
        speeds: of the workers by rank; empty where they count as equal.

    Raises:
        ConfigError: a limit is wrong.
    """
    spec = spec_of(config)
    longest = longest_sequence(config, spec, data)
    item = 2 * longest if spec.data == "preferences" else longest
    limit = _limit(config, plan, spec, item)
    config = _with_limit(config, limit)
    shape = _shape(config, DeviceMap(plan, spec, speeds), limit, item)
    _check_checkpoints(config, shape)
    secret = secrets.token_hex(16)
    return WorkOrder(config, spec, plan, shape, limit, longest, secret, device, speeds)


def _equal(plan: Plan, role: Role) -> tuple[float, ...]:
    return (1.0,) * plan.placement[role].data_parallel


def _check_checkpoints(config: RunConfig, shape: IterationShape) -> None:
    """A checkpoint holds one version of all weights, so it falls on an update of those that serve.

    Raises:
        ConfigError: it does not.
    """
    every = config.run.checkpoint_every
    if every % shape.sync_every:
        raise ConfigError(
            f"run.checkpoint_every = {every}, but the generating weights are new only after every "
            f"{shape.sync_every} iterations.",
            "A checkpoint is written when all weights are of one version: at a multiple of "
            "weights.sync_every.",
            f"Set run.checkpoint_every={shape.sync_every * -(-every // shape.sync_every)}.",
        )


def _join(order: WorkOrder, processes: RayProcesses) -> None:
    ranks = range(len(processes.members))
    step = "open"
    remote = RemoteCalls(processes, lambda rank: f"worker {rank}", lambda _: step)
    calls = [
        remote.call(rank, "open", "work", order, rank, processes.hosts[rank]) for rank in ranks
    ]
    addresses = tuple(remote.values(calls, _JOIN_S))
    host = processes.hosts[0] or LOOPBACK
    step = "open_store"
    (port,) = remote.values([remote.call(0, step, "work", host, len(addresses))], _JOIN_S)
    step = "join"
    meeting = Meeting(addresses, host, port)
    remote.values([remote.call(rank, step, "work", meeting) for rank in ranks], _JOIN_S)


def _log_places(device_map: DeviceMap, processes: RayProcesses) -> None:
    for rank, member in enumerate(processes.members):
        roles = ", ".join(device_map.roles_of(rank))
        place = member.host or "this machine"
        logger.info("worker %d (%s) is process %d on %s", rank, roles, member.process_id, place)


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
    config: RunConfig, device_map: DeviceMap, limit: MicroBatchLimit, item: int
) -> IterationShape:
    plan, spec, sizes = device_map.plan, device_map.spec, batch_sizes(config)
    parts = plan.rollout_micro_batches or config.rollout.micro_batches
    largest = [
        max(rooms(sizes.mini_batch_samples, device_map.replica_speeds(role) or _equal(plan, role)))
        for role in spec.trained
    ]
    return IterationShape(
        num_samples=sizes.samples_per_iteration,
        rollout_micro_batches=parts if spec.generates else 1,
        mini_batches=sizes.num_mini_batches,
        micro_batches_per_mini_batch=max(limit.bound(items, item) for items in largest),
        epochs=config.algorithm.epochs,
        sync_every=plan.sync_every or settled(config.weights.sync_every),
        max_staleness=config.weights.max_staleness,
    )
