"""Section `rollout`: how answers are generated."""

from __future__ import annotations

from flexrlhf.config.section import (
    AtLeastOne,
    Auto,
    Count,
    Fraction,
    Positive,
    PositiveFraction,
    Section,
    Text,
    WholeNumber,
)
from flexrlhf.core.names import EngineName, RolloutWeights, SpeculationName


class Rollout(Section):
    """The engine, the limits of an answer, and how its tokens are drawn."""

    engine: EngineName = "native"
    """Who generates; a model family that native lacks goes to transformers with a message."""
    packed_weights: bool = True
    """On CPUs, in float32, native copies Llama and Qwen weights while it generates, to read them
    faster; costs the memory of the weights again."""
    cuda_graphs: bool = False
    """On GPUs native captures decode steps of models that lie there whole and repeat them, which
    spares launching their operations one by one; where it cannot, it says why and goes on without.
    A captured step is compared with the step itself before it is used. Off until `make gpu-check`
    has passed on a GPU, where it has not run yet."""
    weights: RolloutWeights = "same"
    """int8: on CPUs, in float32, native multiplies Llama and Qwen weights and their inputs rounded
    to 8 bits while it generates, on one device, which is faster. Answers, those of an evaluation
    too, are of a slightly different policy, see `algorithm.importance`, and depend on which are
    written together. `packed_weights` is then not looked at."""
    kept_prefix_tokens: WholeNumber = 0
    """Tokens of earlier prompts and answers whose keys and values native keeps, in blocks of 16, so
    that a prompt that begins like one of them reads the rest alone, as long as the weights are the
    same: turns of a conversation, prompts with one long beginning, repeated evaluations. On one
    device; 0: none."""
    speculation: SpeculationName = "none"
    """Tokens that are tried several at a time, in native, with the same answers: `prompt_lookup`
    proposes what stood behind the last tokens before; pays where answers repeat their prompts and
    few are generated at a time. `draft_model` lets a smaller model propose; auto: the one of the
    two that can be had, where a plan expects it to make generation faster."""
    draft_model: Text | None = None
    """The smaller model, of the actor's vocabulary: a folder, a GGUF file, `hub:ORG/NAME`, or
    `reference` for the model of that role, which is idle while answers are generated."""
    speculative_tokens: Count = 4
    """Tokens proposed for an answer in one step."""
    speculative_acceptance: Auto | Fraction = "auto"
    """Chance that a plan takes a proposed token to be drawn with, if all before it were:
    `speculation/acceptance` of an earlier run; auto: 0.3 for prompt lookup, 0.6 for a draft model,
    which are suppositions."""
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
    """Nats by which engine and trainer may differ in a log-prob; auto: 1e-4, bfloat16 2e-2, int8
    weights 5."""
    speedup: Positive = 1.0
    """Factor by which a plan takes generation to be faster, to see what that would change."""
