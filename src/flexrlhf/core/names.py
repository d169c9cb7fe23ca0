"""The closed lists of names that configs, plans, timelines and metrics share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, cast, get_args

Role = Literal["actor", "critic", "reference", "reward", "shadow_actor", "shadow_critic"]
"""What a model does in the loop. Where an algorithm has several models of one role, each is called
by the role and a label: see `labelled`."""
Stage = Literal["generate", "score", "advantage", "train", "sync"]
TransferClass = Literal["collective", "experience", "weights"]
"""What a transfer carries: partial results inside a group, samples between groups, or weights."""
ChatMode = Literal["auto", "always", "never"]
"""Whether rows become conversations: those that hold messages, plain texts too, or none."""
TooLong = Literal["error", "drop"]
"""What becomes of a row that is longer than allowed."""
PreferenceLossName = Literal["sigmoid", "robust", "sigmoid_norm", "hinge", "ipo"]
"""What a policy minimises on pairs of answers; the names are TRL's."""

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
ImportanceName = Literal["none", "token", "sequence"]
"""For what a weight is reckoned where answers come of another policy than the trainer's."""
RolloutWeights = Literal["same", "int8"]
"""What an engine multiplies by: the trainer's weights, or a rounded copy."""
EngineName = Literal["native", "transformers", "vllm", "sglang"]
BuiltEngine = Literal["native", "transformers"]
"""Engines that can generate today; the others are planned."""
SpeculationName = Literal["none", "prompt_lookup", "draft_model", "auto"]
"""Who proposes tokens that the actor then draws several of in one step."""
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
    "deepspeed_chat",
    "trlx",
    "openrlhf",
    "verl",
    "real",
]
PoolName = Literal["train", "score", "generate"]
GenerationMode = Literal["gathered", "per_token", "tensor_parallel"]
"""How sharded weights are present while they generate: gathered once, gathered for every token, or
resharded by tensor parallelism."""

ROLES: Final[tuple[Role, ...]] = get_args(Role)
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)
ALGORITHMS: Final[tuple[AlgorithmName, ...]] = get_args(AlgorithmName)
ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)
BUILT_ENGINES: Final[tuple[BuiltEngine, ...]] = get_args(BuiltEngine)
POOLS: Final[tuple[PoolName, ...]] = get_args(PoolName)
"""In the order of their device ranges: generation comes last, as in the paper's Figure 4."""
GENERATION_MODES: Final[tuple[GenerationMode, ...]] = get_args(GenerationMode)
STRATEGIES: Final[tuple[StrategyName, ...]] = get_args(StrategyName)
PUBLISHED_SYSTEMS: Final[tuple[StrategyName, ...]] = (
    "deepspeed_chat",
    "trlx",
    "openrlhf",
    "verl",
    "real",
)
"""Strategies that say where another system would put the roles: for planning alone."""
SHADOWS: Final[dict[Role, Role]] = {"actor": "shadow_actor", "critic": "shadow_critic"}
"""The copy that generates or scores in place of a trained role, on devices of its own."""


def labelled(role: Role, label: str) -> Role:
    """Returns the name of one of several models of `role`, as in `reward:safety`.

    It stands wherever a role stands. Python has no type for such a name, hence the cast.
    """
    return cast("Role", f"{role}:{label}")


def kind_of(role: Role) -> Role:
    """Returns which of `ROLES` a role is, its label left out."""
    return cast("Role", role.partition(":")[0])


def in_order(roles: Iterable[Role]) -> tuple[Role, ...]:
    """Returns roles in the order of `ROLES`; models of one role stay as they are given."""
    return tuple(sorted(roles, key=lambda role: ROLES.index(kind_of(role))))
