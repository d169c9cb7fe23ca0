"""Pools: who trains, who generates and who scores on devices of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import POOLS, SHADOWS, PoolName, Role, in_order
from flexrlhf.planning.placement.ratio import pack
from flexrlhf.planning.placement.shares import consecutive, largest_remainder, shown

_SHADOWED: Final[dict[Role, Role]] = {shadow: role for role, shadow in SHADOWS.items()}


@dataclass(frozen=True, slots=True)
class PoolShare:
    """What a user asks for one pool."""

    share: Fraction
    """Of all devices."""
    ratio: tuple[Fraction, ...] | None = None
    """Inside the pool, for its roles in their order; None puts each role on the whole pool."""


def pool_roles(spec: AlgorithmSpec, *, has_score: bool) -> dict[PoolName, tuple[Role, ...]]:
    """Returns the models of each pool, in the order in which a ratio names them.

    A trained role has a shadow where it generates or scores. Without a pool of their own the
    scoring models stand in the generating pool.
    """
    scored: list[Role] = [step.role for step in spec.scored if step.role in spec.models]
    scoring: list[Role] = [role for role in scored if role not in spec.trained]
    if "critic" in spec.trained and "critic" in scored:
        scoring.append("shadow_critic")
    if not has_score:
        return {"train": spec.trained, "generate": _ordered(["shadow_actor", *scoring])}
    return {"train": spec.trained, "score": _ordered(scoring), "generate": ("shadow_actor",)}


def pool_ranges(
    shares: Mapping[PoolName, Fraction], devices: Sequence[int]
) -> dict[PoolName, tuple[int, ...]]:
    """Returns the consecutive devices of each pool: train, then score, then generate.

    Raises:
        PlanError: the shares do not sum to 1, or a pool would get no device.
    """
    names: list[PoolName] = [name for name in POOLS if name in shares]
    values = [shares[name] for name in names]
    said = ", ".join(f"{name}: {shown(shares[name])}" for name in names)
    if sum(values) != 1 or min(values) <= 0:
        raise PlanError(
            f"placement.pools = {{{said}}} sums to {shown(sum(values, Fraction()))}.",
            "The shares of the pools are above 0 and sum to 1.",
            "Change a share; a third is written 1/3.",
        )
    counts = largest_remainder(values, len(devices))
    for name, count in zip(names, counts, strict=True):
        if count == 0:
            raise PlanError(
                f"placement.pools = {{{said}}}: {name}'s {shown(shares[name])} of {len(devices)} "
                "devices is none.",
                "Each pool gets at least one device.",
                f"Give {name} a larger share, or more devices.",
            )
    return dict(zip(names, consecutive(devices, counts), strict=True))


def place_pools(
    spec: AlgorithmSpec,
    ranges: Mapping[PoolName, tuple[int, ...]],
    ratios: Mapping[PoolName, tuple[Fraction, ...]],
) -> dict[Role, tuple[int, ...]]:
    """Returns the devices of every role, shadows included; functions stand where scoring is.

    Args:
        spec: the algorithm, which generates.
        ranges: the devices of each pool; without `score`, `generate` scores as well.
        ratios: of the pools whose roles do not all stand on the whole of it.

    Raises:
        PlanError: a pool has no model, or a ratio cannot be packed or has not a share for each.
    """
    scoring = ranges.get("score", ranges["generate"])
    placed: dict[Role, tuple[int, ...]] = dict.fromkeys(spec.functions, scoring)
    for name, roles in pool_roles(spec, has_score="score" in ranges).items():
        key = f"placement.pools.{name}.ratio"
        if not roles:
            raise PlanError(
                f"placement.pools.{name} has devices, but {spec.name} has no model for them.",
                f"Pools with a model: {', '.join(n for n in ranges if n != name)}.",
                "Give its share to another pool.",
            )
        ratio = ratios.get(name, (Fraction(1),) * len(roles))
        if len(ratio) != len(roles):
            raise PlanError(
                f"{key} has {len(ratio)} shares.",
                f"The roles of this pool are {', '.join(roles)}: {len(roles)} shares.",
                "Give one share for each, in this order.",
            )
        packing = pack(dict(zip(roles, ratio, strict=True)), ranges[name], key=key)
        placed |= packing.devices
    return {role: placed[role] for role in in_order(placed)}


def _ordered(roles: Sequence[Role]) -> tuple[Role, ...]:
    """Sorts as actor, critic, reference, reward; a shadow stands where its role would."""
    bases: dict[Role, Role] = {_SHADOWED.get(role, role): role for role in roles}
    return tuple(bases[base] for base in in_order(bases))
