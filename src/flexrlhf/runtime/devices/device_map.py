"""Which worker holds which roles, and who has what a task made: all that follows from a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import SHADOWS, Role
from flexrlhf.learning.models.role_mesh import ShardDegrees
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.workflow.groups import DeviceGroup, device_groups

_TRAINED_BY: Mapping[Role, Role] = {shadow: role for role, shadow in SHADOWS.items()}


@dataclass(frozen=True)
class DeviceMap:
    """The workers of a plan: rank r is the r-th of its devices.

    A role's results are kept by the first process of each of its replicas.
    """

    plan: Plan
    spec: AlgorithmSpec
    speeds: tuple[float, ...] = ()
    """Of each worker, by rank; empty where they count as equal."""

    @cached_property
    def groups(self) -> Mapping[str, DeviceGroup]:
        """The plan's groups by name."""
        return {group.name: group for group in device_groups(self.plan)}

    @cached_property
    def _rank_of(self) -> Mapping[int, int]:
        return {device: rank for rank, device in enumerate(self.plan.devices)}

    @property
    def num_ranks(self) -> int:
        """Workers of the run."""
        return len(self.plan.devices)

    def group_ranks(self, group: str) -> tuple[int, ...]:
        """Returns the workers of a group."""
        return tuple(self._rank_of[device] for device in self.groups[group].devices)

    def group_of(self, role: Role) -> str:
        """Returns the group that a role works in; a worker may belong to several."""
        return next(name for name, group in self.groups.items() if role in group.roles)

    def ranks(self, role: Role) -> tuple[int, ...]:
        """Returns the workers of a role, in the order of its devices."""
        return tuple(self._rank_of[device] for device in self.plan.placement[role].devices)

    def roles_of(self, rank: int) -> tuple[Role, ...]:
        """Returns the roles that a worker holds a part of."""
        return tuple(role for role in self.plan.placement if rank in self.ranks(role))

    def serving(self, role: Role) -> Role:
        """Returns the role that generates or scores for `role`: its shadow, if there is one."""
        shadow = SHADOWS.get(role)
        return role if shadow is None or shadow not in self.plan.placement else shadow

    @property
    def generating(self) -> Role:
        """The role that generates."""
        return self.serving("actor")

    @property
    def streams(self) -> bool:
        """Whether answers go on being generated while those that ended are scored elsewhere."""
        return self.plan.is_apart(self.generating)

    @property
    def barrier_ranks(self) -> tuple[int, ...]:
        """The workers that give a whole batch its advantages."""
        return self.ranks("actor")

    def degrees(self, role: Role) -> ShardDegrees:
        """Returns how a role's weights are split."""
        return shard_degrees(self.plan.placement[role])

    def replica_speeds(self, role: Role) -> tuple[float, ...]:
        """Returns the speed of each replica of a role, its slowest worker's; empty if equal."""
        slowest: dict[int, float] = {}
        for rank in self.ranks(role) if self.speeds else ():
            replica = self.replica(role, rank)
            slowest[replica] = min(self.speeds[rank], slowest.get(replica, math.inf))
        return tuple(slowest[replica] for replica in sorted(slowest))

    @property
    def engine_speeds(self) -> tuple[float, ...]:
        """The same of each copy that generates."""
        role = self.generating
        ranks, size = self.ranks(role), self.engine_tensor(role)
        firsts = range(0, len(ranks), size) if self.speeds else ()
        return tuple(min(self.speeds[r] for r in ranks[first : first + size]) for first in firsts)

    def engine_tensor(self, role: Role) -> int:
        """Returns the devices over which a copy of a generating role is split."""
        placement = self.plan.placement[role]
        return placement.generation_tensor_parallel or placement.tensor_parallel

    def replica(self, role: Role, rank: int) -> int:
        """Returns which replica of a role a worker holds a part of."""
        degrees = self.degrees(role)
        return self.ranks(role).index(rank) % degrees.stage_size // degrees.tensor

    def has_own_engine(self, role: Role) -> bool:
        """Whether a generating role does so with copies that are cut otherwise than its weights."""
        degrees = self.degrees(role)
        return degrees.pipeline > 1 or self.engine_tensor(role) != degrees.tensor

    def scorers(self, role: Role) -> tuple[int, ...]:
        """Returns the workers that keep what `role` says of given answers, replica by replica.

        Every process of a replica knows it; the first of its first pipeline stage keeps it.
        """
        degrees = self.degrees(role)
        return self.ranks(role)[: degrees.stage_size : degrees.tensor]

    @property
    def generators(self) -> tuple[int, ...]:
        """The workers that keep generated answers, replica by replica of the engine."""
        role = self.generating
        return self.ranks(role)[:: self.engine_tensor(role)]


def shard_degrees(placement: RolePlacement) -> ShardDegrees:
    """Returns a placement's degrees as models take them."""
    tensor, shard = placement.tensor_parallel, placement.shard_devices
    return ShardDegrees(
        tensor=tensor,
        data=placement.data_parallel,
        pipeline=placement.pipeline_parallel,
        zero_stage=placement.zero_stage,
        shard_replicas=None if shard is None else max(1, shard // tensor),
        offload=placement.offload,
    )


def trained_by(role: Role) -> Role:
    """Returns the role whose weights a shadow serves; any other role itself."""
    return _TRAINED_BY.get(role, role)
