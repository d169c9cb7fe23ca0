"""How the published systems behave: structure from their documents and code, nothing fitted.

Sources: DeepSpeed-Chat's and trlX's repositories of 2023; FlexRLHF's released code; OpenRLHF,
README and commit 0baf3dd; ReaL, arXiv 2406.14088; verl's documentation; NeMo-RL, recipes of v0.6;
prime-rl, commit 559b447, whose benchmark files name two micro-batches a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Backend = Literal["zero", "megatron"]
Generator = Literal["transformers", "own", "serving"]
"""Transformers' code or the system's own, launched operation by operation; or a serving engine,
which replays captured steps and batches continuously."""


@dataclass(frozen=True, slots=True)
class System:
    """One system, as far as a time depends on it."""

    name: str
    year: int
    """Generation of its software."""
    backend: Backend = "zero"
    generator: Generator = "serving"
    zero_stage: int = 3
    pads: bool = False
    """Batches are padded to the longest response, in training too."""
    pads_prompts: bool = False
    """Prompts are padded to their limit."""
    micro_batch_tokens: int = 16384
    """Tokens of a pass on one replica where nothing is stated."""
    recomputes: bool = True
    usual_tokens: float = 1024.0
    """Limit of prompts and of responses where neither is stated."""
    fills_memory: bool = False
    """An unstated batch is the largest that fits."""
    has_hybrid_engine: bool = False
    """It can gather or split its weights for a whole generation."""
    shadow_scores: bool = False
    """Where generation is apart, its devices score too."""
    scores_actor_when_apart: bool = True
    """Where generation is apart, the trainer computes the actor's log-probs once more."""
    rolls_in_parts: bool = False
    """Prompts go to the engine in parts, each scored before the next."""
    passes_per_write: int = 0
    """Micro-batches after which its trainer, measured alone, has written its weights into a folder
    for the engines; 0: it writes none."""
    is_stage_timed: bool = False
    """Its samples/s leave out the scoring stage where roles share their devices. Where they are
    apart it takes the time between two updates, in which everything is."""
    hosts_reward_apart: bool = False
    """The one device of its reward model holds nothing else: `layouts.rewards_hosted_apart`."""
    keeps_batch: bool = False
    """Its largest batch per device is found on the fewest nodes that hold it, and kept on more.
    Source: trlX, configs/ppo_config.yml, `batch_size`; FlexRLHF's digest: a static batch."""
    splits_when_apart: bool = False
    """Where generation has devices of its own, what only generates or scores is split over a node
    by tensor parallelism. Source: FlexRLHF's released code, `ModelSEPConfig(TP=8, PP=1)`."""


_SYSTEMS: Final = (
    System(
        "DeepSpeed-Chat",
        2023,
        has_hybrid_engine=True,
        generator="transformers",
        pads=True,
        pads_prompts=True,
        micro_batch_tokens=4096,
        fills_memory=True,
    ),
    System(
        "FlexRLHF",
        2023,
        generator="transformers",
        pads=True,
        pads_prompts=True,
        micro_batch_tokens=4096,
        fills_memory=True,
        shadow_scores=True,
        is_stage_timed=True,
        splits_when_apart=True,
        keeps_batch=True,
    ),
    System(
        "trlX",
        2023,
        generator="transformers",
        pads=True,
        pads_prompts=True,
        micro_batch_tokens=4096,
        zero_stage=2,
        fills_memory=True,
        hosts_reward_apart=True,
        keeps_batch=True,
    ),
    System("NeMo-Aligner", 2023, backend="megatron"),
    System("TensorRT-LLM", 2023, backend="megatron"),
    System("OpenRLHF", 2024, pads=True, micro_batch_tokens=512, rolls_in_parts=True),
    System("ReaL", 2024, backend="megatron", generator="own"),
    System("ReaL-Heuristic", 2024, backend="megatron", generator="own"),
    System("HybridFlow", 2024),
    System("RLHFuse", 2024, backend="megatron"),
    System("AReaL", 2025, scores_actor_when_apart=False),
    System("DistFlow", 2025),
    System("DORA", 2025, backend="megatron"),
    System("LlamaRL", 2025),
    System("NeMo-RL", 2025, backend="megatron"),
    System("Nereus", 2025),
    System("prime-rl", 2025, passes_per_write=2),
    System("StreamRL", 2025, backend="megatron"),
    System("TRL", 2025, pads=True),
    System("verl", 2025, scores_actor_when_apart=False),
    System("WEAVE", 2025),
)
SYSTEMS: Final[Mapping[str, System]] = {system.name.lower(): system for system in _SYSTEMS}
UNSTATED_SYSTEM: Final = System(
    "a system of 2023",
    2023,
    generator="transformers",
    zero_stage=2,
    usual_tokens=256.0,
    recomputes=False,
    pads=True,
    micro_batch_tokens=4096,
    fills_memory=True,
)
