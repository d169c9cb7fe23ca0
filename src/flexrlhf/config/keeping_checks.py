"""Checks of the keys that keeping the beginnings of prompts depends on."""

from __future__ import annotations

from collections.abc import Iterator

from flexrlhf.config.cluster import is_one_device
from flexrlhf.config.problems import Problem, mistake
from flexrlhf.config.resolution import spec_of
from flexrlhf.config.schema import RunConfig

_KEY = "rollout.kept_prefix_tokens"


def check_keeping(config: RunConfig) -> Iterator[Problem]:
    """Yields what kept prefixes cannot go with."""
    kept = config.rollout.kept_prefix_tokens
    if not spec_of(config).generates or not kept:
        return
    if config.rollout.engine != "native":
        yield mistake(
            _KEY,
            kept,
            f"the engine {config.rollout.engine} is asked to keep nothing.",
            "Right: 0, or rollout.engine: native.",
            "rollout.engine",
        )
    if config.rollout.weights == "int8":
        yield mistake(
            _KEY,
            kept,
            "reading less of a prompt differs in the last bits, which rounding to int8 enlarges.",
            "Right: 0, or rollout.weights: same.",
            "rollout.weights",
        )
    if not is_one_device(config.cluster):
        yield mistake(
            _KEY,
            kept,
            "which prompts meet in one engine, and so the last bits of their answers, would depend "
            "on the placement.",
            "Right: 0, or a run on one device.",
            "cluster",
        )
