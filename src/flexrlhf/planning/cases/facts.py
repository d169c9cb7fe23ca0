"""What the degrees of a case depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flexrlhf.core.names import Role
from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import Case
from flexrlhf.planning.cases.systems import System
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.workload import Workload


@dataclass(frozen=True, slots=True)
class Facts:
    """A case before its roles are split over devices."""

    case: Case
    system: System
    cluster: Cluster
    models: Mapping[Role, HeldModel]
    workload: Workload
    taken: Assumptions
    fills_memory: bool = False
    """A pass is as large as the batch, and that as large as fits."""

    @property
    def node_size(self) -> int:
        """Devices of the largest node."""
        return max(len(node.devices) for node in self.cluster.nodes)

    def memory(self, devices: tuple[int, ...]) -> int:
        """Returns the bytes of the first of some devices."""
        return self.cluster.device_type(devices[0]).memory_bytes
