"""The model placement ratio: which devices a share of them means for each role.

Source: the ratio is FlexRLHF's (arXiv 2312.11819), first fit and the largest remainder are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import Role
from flexrlhf.planning.placement.nearest_ratio import nearest_valid
from flexrlhf.planning.placement.shares import consecutive, largest_remainder, shown, vector


@dataclass(frozen=True, slots=True)
class Packing:
    """Roles on devices, by their ratios."""

    devices: Mapping[Role, tuple[int, ...]]
    sets: tuple[tuple[Role, ...], ...]
    """Roles that share the devices between them; those with ratio 1 are in none."""
    rounding: str = ""
    """Which shares did not divide the devices, and what they became; empty where all did."""


def first_fit(ratios: Sequence[Fraction]) -> list[list[int]]:
    """Groups ratios below 1 into sets, as indices.

    A ratio joins the first open set whose sum stays at most 1, else it opens one; a set closes
    at 1.
    """
    sets: list[list[int]] = []
    for index, ratio in enumerate(ratios):
        if ratio == 1:
            continue
        fitting = (held for held in sets if sum(ratios[i] for i in held) + ratio <= 1)
        if (target := next(fitting, None)) is None:
            sets.append([index])
        else:
            target.append(index)
    return sets


def is_valid(ratios: Sequence[Fraction]) -> bool:
    """Whether first fit fills every set, so that no device is left without a role."""
    return all(sum(ratios[i] for i in held) == 1 for held in first_fit(ratios))


def pack(
    ratios: Mapping[Role, Fraction], devices: Sequence[int], *, key: str = "placement.ratio"
) -> Packing:
    """Places roles by their ratios.

    A role with ratio 1 takes all devices. The others share them in sets, made by first fit in the
    order of `ratios`; the roles of a set get disjoint consecutive ranges. Shares that do not divide
    the devices go by largest remainder.

    Args:
        ratios: in (0, 1], roles in their order: actor, critic, reference, reward.
        devices: to be shared out, in the order of their ranges.
        key: of the config, for messages.

    Raises:
        PlanError: a ratio is out of range, a set does not sum to 1, or a role would get no device.
    """
    values = list(ratios.values())
    if not all(0 < ratio <= 1 for ratio in values):
        raise PlanError(
            f"{key} = {vector(values)}: a share is out of range.",
            "Each share is above 0 and at most 1.",
            "Change the ratio.",
        )
    if not is_valid(values):
        raise _unfilled(ratios, key)
    roles = list(ratios)
    placed: dict[Role, tuple[int, ...]] = {}
    roundings: list[str] = []
    sets = first_fit(values)
    for held in sets:
        shares = [values[i] for i in held]
        counts = largest_remainder(shares, len(devices))
        for index, count, own in zip(held, counts, consecutive(devices, counts), strict=True):
            placed[roles[index]] = own
            if count != values[index] * len(devices):
                roundings.append(_rounding(roles[index], values[index], len(devices), count))
    _refuse_empty(ratios, placed, devices, key)
    return Packing(
        devices={role: placed.get(role, tuple(devices)) for role in roles},
        sets=tuple(tuple(roles[i] for i in held) for held in sets),
        rounding="; ".join(roundings),
    )


def _rounding(role: Role, share: Fraction, num_devices: int, count: int) -> str:
    exact_count = f"{float(share * num_devices):g}"
    return f"{role}'s {shown(share)} of {num_devices} devices, {exact_count}, is {count}"


def _unfilled(ratios: Mapping[Role, Fraction], key: str) -> PlanError:
    values, roles = list(ratios.values()), list(ratios)
    sums = [(held, sum((values[i] for i in held), Fraction())) for held in first_fit(values)]
    said = [
        f"{' + '.join(roles[i] for i in held)} = {shown(total)}"
        for held, total in sums
        if total != 1
    ]
    return PlanError(
        f"{key} = {vector(values)} for {', '.join(roles)}: {', '.join(said)}.",
        "Roles below 1 join, in this order, the first set that they do not overfill; each set sums "
        "to 1.",
        f"The nearest ratio that does: {vector(nearest_valid(values, is_valid))}.",
    )


def _refuse_empty(
    ratios: Mapping[Role, Fraction],
    placed: Mapping[Role, tuple[int, ...]],
    devices: Sequence[int],
    key: str,
) -> None:
    for role, own in placed.items():
        if not own:
            raise PlanError(
                f"{key} = {vector(ratios.values())}: {role}'s {shown(ratios[role])} of "
                f"{len(devices)} devices is none.",
                "Each role gets at least one device.",
                f"Give {role} a larger share, or more devices.",
            )
