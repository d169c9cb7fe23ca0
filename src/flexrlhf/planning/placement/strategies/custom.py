"""custom: where the user says that roles go, by ratio, pools or device lists.

What comes out is called by the strategy that it is, and `custom` where it is none.
"""

from __future__ import annotations

from fractions import Fraction

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import PoolName, Role, in_order
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.choices import Choices
from flexrlhf.planning.placement.pools import place_pools, pool_ranges
from flexrlhf.planning.placement.ratio import Packing, pack
from flexrlhf.planning.placement.recognition import strategy_of
from flexrlhf.planning.placement.shares import vector

Devices = dict[Role, tuple[int, ...]]


def custom(spec: AlgorithmSpec, cluster: Cluster, choices: Choices) -> Arrangement:
    """Returns the arrangement that the user describes.

    Raises:
        PlanError: shares cannot be turned into devices, a role has no place, or the strategy that
            the user names is another one.
        ConfigError: the cluster has no such device.
    """
    placed, rounding = _by_shares(spec, cluster, choices)
    for role, own in choices.devices.items():
        cluster.nodes_of(own)
        placed[role] = own
    _require_places(spec, placed)
    for role in spec.functions:
        placed.setdefault(role, placed["actor"])  # where the answers are gathered
    devices: Devices = {role: placed[role] for role in in_order(placed)}
    strategy = strategy_of(spec, cluster, devices)
    if choices.strategy not in ("auto", "custom", strategy):
        raise PlanError(
            f"placement.strategy = {choices.strategy!r}, but where the roles are put is "
            f"{strategy!r}.",
            "The two agree, or the strategy is auto.",
            "Leave placement.strategy out, or change where the roles go.",
        )
    return Arrangement(strategy, devices, f"{_counts(devices)}{rounding}")


def _by_shares(spec: AlgorithmSpec, cluster: Cluster, choices: Choices) -> tuple[Devices, str]:
    """Returns what ratio or pools place, and how shares were rounded."""
    if choices.pools is not None:
        shares: dict[PoolName, Fraction] = {n: pool.share for n, pool in choices.pools.items()}
        ratios: dict[PoolName, tuple[Fraction, ...]] = {
            n: pool.ratio for n, pool in choices.pools.items() if pool.ratio is not None
        }
        return place_pools(spec, pool_ranges(shares, cluster.devices), ratios), ""
    if choices.ratio is not None:
        packing = _packed(spec, cluster, choices.ratio)
        return dict(packing.devices), f" Rounded: {packing.rounding}." if packing.rounding else ""
    return {}, ""


def _packed(spec: AlgorithmSpec, cluster: Cluster, ratio: tuple[Fraction, ...]) -> Packing:
    if len(ratio) != len(spec.models):
        raise PlanError(
            f"placement.ratio = {vector(ratio)} has {len(ratio)} shares.",
            f"{spec.name} has the models {', '.join(in_order(spec.models))}.",
            "Give one share for each, in this order.",
        )
    return pack(dict(zip(in_order(spec.models), ratio, strict=True)), cluster.devices)


def _require_places(spec: AlgorithmSpec, placed: Devices) -> None:
    if missing := [role for role in spec.models if role not in placed]:
        raise PlanError(
            f"placement.devices has no place for {', '.join(missing)}.",
            "Each model has a list, or placement.ratio or placement.pools places the others.",
            "Add the missing lists.",
        )


def _counts(placed: Devices) -> str:
    said = ", ".join(f"{role} on {len(devices)}" for role, devices in placed.items())
    return f"As the config says: {said} of the devices."
