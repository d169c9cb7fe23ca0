"""The closed lists of names that configs, plans, timelines and metrics share."""

from __future__ import annotations

from typing import Final, Literal, get_args

Role = Literal["actor", "critic", "reference", "reward", "shadow_actor", "shadow_critic"]
Stage = Literal["generate", "score", "advantage", "train", "sync"]
TransferClass = Literal["collective", "experience", "weights"]
"""What a transfer carries: partial results inside a group, samples between groups, or weights."""

AlgorithmName = Literal[
    "ppo",
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gspo",
    "dapo",
    "dpo",
    "ipo",
    "kto",
    "sft",
    "reward_model",
]
EngineName = Literal["native", "transformers", "vllm", "sglang"]
StrategyName = Literal[
    "colocated",
    "interleaved_1",
    "interleaved_2",
    "disaggregated",
    "reward_on_one",
    "zero3_generation",
    "hybrid_sharded",
    "tp_generation",
    "custom",
]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
ALGORITHMS: Final[tuple[AlgorithmName, ...]] = get_args(AlgorithmName)
ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
STRATEGIES: Final[tuple[StrategyName, ...]] = get_args(StrategyName)
