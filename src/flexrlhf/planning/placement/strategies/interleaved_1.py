"""interleaved_1: frozen models next to each other on parts, what is trained everywhere."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.independent import independent_models, why_not_interleaved
from flexrlhf.planning.placement.layouts import compositions, with_own_places
from flexrlhf.planning.placement.shares import consecutive, largest_remainder

_NAME: Final = "interleaved_1"
_FINEST: Final = 8
"""Parts of which shares are made, for two models."""
_MOST_DIVISIONS: Final = 40


def interleaved_1(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement] | Refusal:
    """Returns equal shares first, then unequal ones: a small reward model needs fewer devices."""
    if why := why_not_interleaved(spec):
        return Refusal(_NAME, why)
    models, devices = independent_models(spec), cluster.devices
    if len(devices) < len(models):
        there = "one device" if len(devices) == 1 else f"{len(devices)} devices"
        return Refusal(
            _NAME,
            f"{len(models)} frozen models ({', '.join(models)}) cannot stand side by side on "
            f"{there}.",
        )
    return [
        Arrangement(
            _NAME,
            with_own_places(
                spec, devices, dict(zip(models, consecutive(devices, counts), strict=True))
            ),
            division_note(models, counts),
        )
        for counts in divisions(len(models), len(devices))
    ]


def divisions(num_models: int, num_devices: int) -> list[tuple[int, ...]]:
    """Returns how many devices each of some models gets, the even division first.

    Args:
        num_models: at least 2, at most `num_devices`.
        num_devices: of all models together.
    """
    even = tuple(largest_remainder([Fraction(1, num_models)] * num_models, num_devices))
    parts = min(_FINEST, num_devices)
    while parts > num_models and comb(parts - 1, num_models - 1) > _MOST_DIVISIONS:
        parts -= 1
    uneven = (
        tuple(largest_remainder([Fraction(part, parts) for part in way], num_devices))
        for way in compositions(max(parts, num_models), num_models)
    )
    return list(dict.fromkeys([even, *(counts for counts in uneven if min(counts) > 0)]))


def division_note(models: tuple[Role, ...], counts: tuple[int, ...]) -> str:
    """Returns one sentence that says how the frozen models divide the devices."""
    said = ", ".join(f"{model} on {count}" for model, count in zip(models, counts, strict=True))
    return f"Frozen models score next to each other ({said} devices); what is trained is on all."
