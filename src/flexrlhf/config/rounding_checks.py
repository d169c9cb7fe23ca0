"""Checks of the keys that generation with weights in int8 depends on."""

from __future__ import annotations

from collections.abc import Iterator

from flexrlhf.config.cluster import is_one_device
from flexrlhf.config.problems import Problem, mistake
from flexrlhf.config.resolution import spec_of
from flexrlhf.config.schema import RunConfig

_KEY = "rollout.weights"


def check_rounding(config: RunConfig) -> Iterator[Problem]:
    """Yields what generation with weights in int8 cannot go with; the device is not looked at."""
    if not spec_of(config).generates or config.rollout.weights != "int8":
        return
    if config.rollout.engine != "native":
        yield mistake(
            _KEY,
            "int8",
            f"the engine {config.rollout.engine} multiplies by the weights as they are.",
            "Right: same, or rollout.engine: native.",
            "rollout.engine",
        )
    if config.training.precision != "float32":
        yield mistake(
            _KEY,
            "int8",
            f"the rest of the engine would compute in {config.training.precision}.",
            "Right: same, or training.precision: float32.",
            "training.precision",
        )
    if config.rollout.speculation != "none":
        yield mistake(
            "rollout.speculation",
            config.rollout.speculation,
            "reading several tokens at a time differs in the last bits, which rounding enlarges: "
            "answers would not be those without it.",
            f"Right: none, or {_KEY}: same.",
            _KEY,
        )
    actor = config.model.actor
    if actor is not None and actor.dtype != "float32":
        yield mistake(
            _KEY,
            "int8",
            f"weights are rounded from float32, and the actor's are {actor.dtype}.",
            "Right: same, or model.actor.dtype: float32.",
            "model.actor.dtype",
        )
    if not is_one_device(config.cluster):
        yield mistake(
            _KEY,
            "int8",
            "rounding enlarges what differs in the last bits between placements: several workers "
            "would not give the answers of one device.",
            "Right: same, or a run on one device.",
            "cluster",
        )
