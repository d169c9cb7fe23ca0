"""openrlhf: roles on groups of devices of their own, with vLLM engines beside them.

Source: OpenRLHF's README: actor and reference share devices, critic and reward share devices, and
vLLM : actor : critic are 1 : 1 : 1; or all roles are apart; or all share all devices, where the
engines sleep while others work. Trained roles use ZeRO-3.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role, in_order
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Degrees
from flexrlhf.planning.placement.layouts import everywhere, tensor_sizes
from flexrlhf.planning.placement.shares import consecutive, largest_remainder
from flexrlhf.planning.placement.split_generation import split_generation

_NAME: Final = "openrlhf"


def openrlhf(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement]:
    """Returns the three layouts of OpenRLHF's README; those that fit the devices."""
    fixed: dict[Role, Degrees] = {role: {"zero_stage": 3} for role in spec.trained}
    devices = everywhere(spec, cluster.devices)
    if not spec.generates:
        note = "As in OpenRLHF: all roles on all devices."
        return [Arrangement(_NAME, devices, note, fixed=fixed)]
    note = "As in OpenRLHF: all roles on all devices, engines asleep while others work."
    together = Arrangement(_NAME, devices, note, fixed=fixed)
    pairs = _pairs(spec)
    apart: list[list[Role]] = [[role] for role in (*spec.models, "shadow_actor")]
    found = [
        Arrangement(_NAME, _divided(spec, cluster, groups), f"As in OpenRLHF: {how}.", fixed=fixed)
        for groups, how in (
            (pairs, "actor beside reference, critic beside reward, engines apart"),
            (apart, "each role on devices of its own"),
        )
        if len(groups) <= cluster.num_devices
    ]
    return [*found, *(split_generation(together, cluster) or [together])]


def _pairs(spec: AlgorithmSpec) -> list[list[Role]]:
    """The roles that share devices."""
    beside_actor: list[Role] = [r for r in spec.models if r in ("actor", "reference")]
    beside_critic: list[Role] = [r for r in spec.models if r not in beside_actor]
    engines: list[Role] = ["shadow_actor"]
    return [group for group in (beside_actor, beside_critic, engines) if group]


def _divided(
    spec: AlgorithmSpec, cluster: Cluster, groups: Sequence[Sequence[Role]]
) -> dict[Role, tuple[int, ...]]:
    """Puts groups on parts of the devices, as equal as blocks allow that engines can split over.

    Functions run where the actor is.
    """
    total = cluster.num_devices
    block = max(size for size in (1, *tensor_sizes(cluster)) if total // size >= len(groups))
    shares = [Fraction(1, len(groups))] * len(groups)
    counts = [block * blocks for blocks in largest_remainder(shares, total // block)]
    placed: dict[Role, tuple[int, ...]] = {}
    for group, devices in zip(groups, consecutive(cluster.devices, counts), strict=True):
        placed |= dict.fromkeys(group, devices)
    placed |= dict.fromkeys(spec.functions, placed["actor"])
    return {role: placed[role] for role in in_order(placed)}
