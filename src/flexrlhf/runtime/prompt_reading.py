"""What is measured of an engine that keeps the beginnings of prompts."""

from __future__ import annotations

from flexrlhf.learning.rollout.protocol import RolloutEngine
from flexrlhf.runtime.measurements import Measurement, Measurements


def prompt_measurements(engine: RolloutEngine) -> Measurements:
    """Returns how much of prompts was read since the last call; nothing if no prefix is kept."""
    counts = engine.take_prompt_counts()
    if not counts.tokens:
        return {}
    tokens = float(counts.tokens)
    return {"prompt_tokens/read_fraction": Measurement(counts.read / tokens, tokens)}
