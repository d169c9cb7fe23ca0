"""The simulated grid: every placement at the same work, by model, devices and length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from baselines import (
    COLOCATED,
    DISAGGREGATED,
    GATHER_ONCE,
    INTERLEAVED_1,
    INTERLEAVED_1_ZERO_3,
    INTERLEAVED_2,
    INTERLEAVED_2_BEST,
    LOCAL,
    LOCAL_PER_TOKEN,
    OPENRLHF,
    OVERLAPPED,
    PER_TOKEN,
    REWARD_ON_ONE,
    TENSOR_PARALLEL,
    VERL,
    Way,
    best_plan,
)
from work import LENGTHS, work

from flexrlhf.core.timeline import Share

FAIR: Final = (GATHER_ONCE, TENSOR_PARALLEL, LOCAL, VERL, OPENRLHF)
"""Baselines that know what was known: no gather for every token, all devices at work."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is compared: one model on one cluster at one length."""

    model: str
    devices: int
    tokens: int
    shares_trunk: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one placement makes of a scene."""

    way: Way
    samples_per_s: float | None
    """None where it does not fit, or where there is no such placement."""
    shares: Mapping[Share, float]
    """Of an iteration, each stage from start to end; more than 1 in all where stages overlap."""


@cache
def outcome(scene: Scene, way: Way) -> Outcome:
    """Returns the simulated throughput of a placement."""
    request = work(scene.model, scene.devices, scene.tokens, shares_trunk=scene.shares_trunk)
    found = best_plan(request, way)
    predicted = None if found is None else found.best.plan.predicted
    if predicted is None:
        return Outcome(way, None, {})
    shares = {s: seconds / predicted.iteration_s for s, seconds in predicted.stage_s.items()}
    return Outcome(way, predicted.samples_per_s, shares)


def speed_up(scene: Scene, way: Way, over: Way) -> float | None:
    """Returns how much faster one placement is than another; None where one does not run."""
    own, other = outcome(scene, way).samples_per_s, outcome(scene, over).samples_per_s
    return None if own is None or other is None else own / other


def best_fair(scene: Scene, ways: Iterable[Way] = FAIR) -> Outcome:
    """Returns the fastest of some baselines."""
    found = [outcome(scene, way) for way in ways]
    return max(found, key=lambda entry: entry.samples_per_s or 0.0)


def over_fair(scene: Scene, way: Way) -> float:
    """Returns how much faster a placement is than the best fair baseline; 0 if it does not run."""
    own, fair = outcome(scene, way).samples_per_s, best_fair(scene).samples_per_s
    assert fair is not None, f"no fair baseline runs: {scene}"
    return (own or 0.0) / fair


LARGE: Final = tuple(
    Scene(model, devices, tokens)
    for model in ("llama-33b", "llama-65b")
    for devices in (32, 128)
    for tokens in LENGTHS
)
"""Where the paper disaggregates."""
LARGE_WAYS: Final = (
    PER_TOKEN,
    GATHER_ONCE,
    TENSOR_PARALLEL,
    LOCAL,
    VERL,
    OPENRLHF,
    DISAGGREGATED,
    OVERLAPPED,
)
SMALL: Final = tuple(
    Scene(model, devices, tokens)
    for model in ("llama-7b", "llama-13b")
    for devices in (8, 32)
    for tokens in LENGTHS
)
"""Where the paper interleaves reference and reward."""
SMALL_WAYS: Final = (COLOCATED, INTERLEAVED_1)
TWO_NODES: Final = tuple(
    Scene(model, 16, tokens)
    for model in ("llama-7b", "llama-13b", "llama-33b", "llama-65b")
    for tokens in LENGTHS
)
"""Where the paper keeps the actor inside one node."""
TWO_NODES_WAYS: Final = (
    PER_TOKEN,
    LOCAL_PER_TOKEN,
    COLOCATED,
    INTERLEAVED_1,
    INTERLEAVED_1_ZERO_3,
    INTERLEAVED_2,
    INTERLEAVED_2_BEST,
)
SHARED: Final = tuple(
    Scene(model, devices, 256, shares_trunk=True)
    for model in ("llama-7b", "llama-13b")
    for devices in (8, 32)
)
"""Where the paper is measured against trlX."""
SHARED_WAYS: Final = (REWARD_ON_ONE, COLOCATED, INTERLEAVED_1)


def scenes_of(scenes: Sequence[Scene], tokens: int) -> list[Scene]:
    """Returns the scenes of one length."""
    return [scene for scene in scenes if scene.tokens == tokens]
