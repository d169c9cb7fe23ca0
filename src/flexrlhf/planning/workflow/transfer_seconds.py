"""How long what crosses groups is on its way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.workflow.adapters import adapter, adapters, narrowing
from flexrlhf.planning.workflow.binding import TransferTime
from flexrlhf.planning.workflow.graph import Graph, Transfer
from flexrlhf.planning.workflow.shape import IterationShape

_EXPERIENCE_BYTES: Final = 36
"""Per token handed over: ids and masks in 8 bytes, values in 2. Source: the authors' released code,
8 x 3 + 2 x 6 bytes per token."""
_MOST_ADAPTERS: Final = 8
"""Devices of a node that send and take at the same time."""


class TransferSeconds:
    """Times of the transfers between the groups of one arrangement.

    Args:
        cluster: the machines.
        graph: of any iteration; they are alike.
        models: of the roles whose weights move.
        takes_buckets: whether the engine takes many tensors at a time.
        shape: into which pieces an iteration is cut.
        workload: samples and lengths.
        calibration: constants of the class of hardware and software.
    """

    def __init__(
        self,
        cluster: Cluster,
        graph: Graph,
        models: Mapping[Role, HeldModel],
        *,
        takes_buckets: bool,
        shape: IterationShape,
        workload: Workload,
        calibration: Calibration,
    ) -> None:
        self._cluster = cluster
        self._devices = {group.name: group.devices for group in graph.groups}
        self._models = models
        self._takes_buckets = takes_buckets
        self._shape = shape
        self._workload = workload
        self._calibration = calibration
        self.links = adapters(cluster, calibration.network_efficiency)

    def of(self, transfer: Transfer) -> TransferTime:
        """Returns what `transfer` moves: a pipelined broadcast needs each byte once per node."""
        source = self._cluster.nodes_of(self._devices[transfer.source_group])
        target = self._cluster.nodes_of(self._devices[transfer.target_group])
        calibration = self._calibration
        latency_s = 0.0
        link = self._cluster.link_between(source[0], target[-1])
        if transfer.kind == "weights":
            share = link.rate(calibration.network_efficiency) / link.rate(
                calibration.sync_efficiency
            )
            held = [self._models[role] for role in transfer.roles if role in self._models]
            num_bytes = share * sum(model.weight_bytes for model in held)
            latency_s = calibration.sync_s
            if not self._takes_buckets:
                latency_s += calibration.tensor_s * sum(m.shape.num_tensors for m in held)
        else:
            samples = self._workload.num_samples / self._shape.rollout_micro_batches
            num_bytes = samples * self._workload.mean_tokens * _EXPERIENCE_BYTES
        joined = {node.index for node in source} | {node.index for node in target}
        if len(joined) == 1:
            width = min(len(self._devices[transfer.target_group]), _MOST_ADAPTERS)
            capacity = link.rate(calibration.link_efficiency) * width
            return TransferTime(num_bytes, (), latency_s + link.latency_s + num_bytes / capacity)
        names = tuple(adapter(index) for index in sorted(joined))
        efficiency = calibration.network_efficiency
        num_bytes *= narrowing(self._cluster, source[0], target[-1], efficiency)
        return TransferTime(num_bytes, names, latency_s + link.latency_s)
