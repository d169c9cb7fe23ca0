"""The worker groups of a plan: roles that sit on the same devices work as one group, in turn."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from flexrlhf.core.names import SHADOWS, Role, in_order
from flexrlhf.planning.placement.plan import Plan


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices that run one task at a time, together, and the roles they hold."""

    name: str
    devices: tuple[int, ...]
    roles: tuple[Role, ...]


def device_groups(plan: Plan) -> tuple[DeviceGroup, ...]:
    """Returns the groups of a plan in the order of their first role.

    A plan of one group calls it `main`. Under shadow roles groups are the pools `train`, `generate`
    and `score`. Any other group, and pools of which there are two, are named after their roles, as
    in `actor+critic`.
    """
    roles_on: dict[tuple[int, ...], list[Role]] = {}
    for role in in_order(plan.placement):
        roles_on.setdefault(plan.placement[role].devices, []).append(role)
    if len(roles_on) == 1:
        return tuple(DeviceGroup("main", d, tuple(roles)) for d, roles in roles_on.items())
    pools = {devices: _pool(roles) for devices, roles in roles_on.items()}
    num_named = Counter(pools.values())
    has_pools = any(role in SHADOWS.values() for role in plan.placement)
    return tuple(
        DeviceGroup(
            pools[devices] if has_pools and num_named[pools[devices]] == 1 else "+".join(roles),
            devices,
            tuple(roles),
        )
        for devices, roles in roles_on.items()
    )


def _pool(roles: list[Role]) -> str:
    if "shadow_actor" in roles:
        return "generate"
    return "train" if any(role in SHADOWS for role in roles) else "score"
