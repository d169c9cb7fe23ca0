"""Section `rollout`: how answers are generated."""

from __future__ import annotations

from flexrlhf.config.section import (
    AtLeastOne,
    Auto,
    Count,
    Positive,
    PositiveFraction,
    Section,
    WholeNumber,
)
from flexrlhf.core.names import EngineName


class Rollout(Section):
    """The engine, the limits of an answer, and how its tokens are drawn."""

    engine: EngineName = "native"
    """Who generates; a model family that native lacks goes to transformers with a message."""
    packed_weights: bool = True
    """On CPUs, in float32, native copies Llama and Qwen weights while it generates, to read them
    faster; costs the memory of the weights again."""
    max_new_tokens: Count = 128
    """Longest answer, in tokens, the end token included."""
    mean_new_tokens: Auto | AtLeastOne = "auto"
    """Length of an answer that a plan reckons with, on average; auto: `max_new_tokens`."""
    min_new_tokens: WholeNumber = 0
    """Tokens before the end token may come."""
    temperature: Positive = 1.0
    """Divides the logits before sampling."""
    top_k: WholeNumber = 0
    """Sample among this many most likely tokens; 0 is all of them."""
    top_p: PositiveFraction = 1.0
    """Sample among the most likely tokens that together have this probability; 1 is all."""
    samples_per_prompt: Count = 4
    """Answers per prompt: the group that grpo compares."""
    generated_groups: Auto | AtLeastOne = "auto"
    """Groups of answers that a plan takes to be generated for each that is trained on; auto: 3 for
    dapo, which drops those whose rewards are all equal, else 1."""
    max_sequences: Auto | Count = "auto"
    """Answers decoded at the same time; auto: all of a generation micro-batch."""
    micro_batches: Count = 1
    """Parts in which prompts are generated and scored; 1 lets a plan choose where it can stream."""
    gap_alarm: Auto | Positive = "auto"
    """Nats by which engine and trainer may differ in a log-prob; auto: 1e-4, bfloat16 2e-2."""
    speedup: Positive = 1.0
    """Factor by which a plan takes generation to be faster, to see what that would change."""
