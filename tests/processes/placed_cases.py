"""Placements in which the same run is made: strategies, ratios, pools and lists of devices, each
with several ways to split the roles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from placed_case import PlacedCase
from tiny_runs import GENERATING


def _case(name: str, workers: int, strategy: str, **keys: Any) -> PlacedCase:
    return PlacedCase(name, workers, {"strategy": strategy}, **keys)


_TENSOR: Final = {"tensor_parallel": 2}
_STAGES: Final = {"pipeline_parallel": 2}
_TRAINING: Final = ("sft", "reward_model", "dpo")
_STAGED: Final = ("ppo-shared", "grpo", *_TRAINING)
"""Those whose trained models all have two layers or more."""

_TWO_GROUPS: Final = (
    PlacedCase(
        "shadows on lists",
        4,
        {
            "devices": {
                "actor": [0, 1],
                "critic": [2],
                "reference": [3],
                "reward": [3],
                "shadow_actor": [2, 3],
                "shadow_critic": [3],
            }
        },
    ),
    PlacedCase(
        "shadows that overlap what they serve for",
        4,
        {
            "devices": {
                "actor": [1, 2],
                "critic": [0, 1],
                "reference": [0],
                "reward": [3],
                "shadow_actor": [0, 1],
                "shadow_critic": [1, 3],
            }
        },
        trained={"zero_stage": 1},
    ),
)
"""Some workers are members of two groups."""

COVERING: Final = (
    *(replace(case, variants=("ppo",)) for case in _TWO_GROUPS),
    PlacedCase("a device each", 4, {"ratio": [0.25, 0.25, 0.25, 0.25]}, variants=("ppo",)),
    PlacedCase("uneven pools", 4, {"pools": {"train": 0.25, "generate": 0.75}}, variants=("ppo",)),
    PlacedCase(
        "answers are scored as they end",
        4,
        {"pools": {"train": 0.25, "generate": 0.5, "score": 0.25}},
        changes={"rollout": {"micro_batches": 3}},
        variants=("ppo",),
    ),
    _case("interleaved, TP 2", 4, "interleaved_1", trained=_TENSOR, variants=("ppo",)),
    _case(
        "ZeRO-3 over all, samples one by one",
        2,
        "colocated",
        trained={"zero_stage": 3},
        frozen={"zero_stage": 3},
        changes={"training": {"micro_batch_tokens": "auto", "micro_batch_samples": 1}},
        variants=("ppo-shared",),
    ),
    _case(
        "experience in parts, replicas without prompts",
        4,
        "colocated",
        trained={"zero_stage": 1},
        changes={"rollout": {"micro_batches": 4, "max_sequences": 3}},
        variants=("grpo-functions",),
    ),
    _case("interleaved over nodes", 4, "interleaved_2", nodes=2, variants=("grpo",)),
    PlacedCase(
        "a shadow that scores with TP 2 and generates with replicas",
        4,
        {"pools": {"train": 0.5, "generate": 0.5}},
        roles={"shadow_actor": {**_TENSOR, "generation_tensor_parallel": 1}},
        variants=("grpo",),
    ),
    _case("TP 2 alone generates", 2, "tp_generation", variants=("grpo",)),
    _case(
        "TP 2 with ZeRO-2 and offload",
        4,
        "colocated",
        trained={**_TENSOR, "zero_stage": 2, "offload": True},
        variants=("sft",),
    ),
    _case("replicas", 2, "colocated", trained={"zero_stage": 1}, variants=("reward_model",)),
    _case(
        "two stages of two replicas, ZeRO-1",
        4,
        "colocated",
        trained={"zero_stage": 1},
        roles={"actor": {**_STAGES, "zero_stage": 1}, "reference": _STAGES},
        variants=("ppo",),
    ),
    _case(
        "two stages", 2, "colocated", trained=_STAGES, variants=("ppo-shared", "dpo", "grpo-once")
    ),
    PlacedCase(
        "ZeRO-3 trains, a reference of TP 2 elsewhere",
        4,
        {"devices": {"actor": [0, 1], "reference": [2, 3]}},
        trained={"zero_stage": 3},
        frozen=_TENSOR,
        variants=("dpo",),
    ),
    PlacedCase(
        "answers go from the engine to training",
        4,
        {"pools": {"train": 0.5, "generate": 0.5}},
        trained={"zero_stage": 3},
        changes={"rollout": {"micro_batches": 2}},
        variants=("grpo-once",),
    ),
)
"""Few cases, chosen so that every way to place a role and to split one occurs."""

_ZERO: Final = tuple(
    _case(f"ZeRO-{stage}", workers, "colocated", trained={"zero_stage": stage}, variants=variants)
    for workers, stage, variants in (
        *((2, stage, (*GENERATING, *_TRAINING)) for stage in range(4)),
        *((4, stage, (*GENERATING, *_TRAINING)) for stage in range(4)),
    )
)
_COLOCATED: Final = (
    *_ZERO,
    *(_case("TP 2", n, "colocated", trained=_TENSOR, frozen=_TENSOR) for n in (2, 4)),
    *(
        _case(f"TP 2, ZeRO-{z}", 4, "colocated", trained={**_TENSOR, "zero_stage": z})
        for z in (1, 2, 3)
    ),
    _case("frozen ZeRO-3", 4, "colocated", frozen={"zero_stage": 3}),
    *(
        _case(f"ZeRO-{z}, offload", 2, "colocated", trained={"zero_stage": z, "offload": True})
        for z in (0, 1, 3)
    ),
    _case(
        "ZeRO-3, gradient checkpointing",
        2,
        "colocated",
        trained={"zero_stage": 3},
        changes={"training": {"gradient_checkpointing": True}},
    ),
    *(
        _case(f"ZeRO-2, {name}", 4, "colocated", trained={"zero_stage": 2}, changes=changes)
        for name, changes in (
            (
                "samples one by one",
                {"training": {"micro_batch_tokens": "auto", "micro_batch_samples": 1}},
            ),
            (
                "three samples at a time",
                {"training": {"micro_batch_tokens": "auto", "micro_batch_samples": 3}},
            ),
            ("small budget", {"training": {"micro_batch_tokens": 16}}),
            ("two parts", {"rollout": {"micro_batches": 2}}),
            ("four parts, three at once", {"rollout": {"micro_batches": 4, "max_sequences": 3}}),
        )
    ),
    *(
        _case(f"generates ZeRO-3, {name}", n, "zero3_generation", trained={"zero_stage": 3})
        for n, name in ((2, "2 replicas"), (4, "4 replicas"))
    ),
    *(_case("reward on one", n, "reward_on_one", trained={"zero_stage": 1}) for n in (2, 4)),
    *(_case("generates TP 2", n, "tp_generation", trained={"zero_stage": 2}) for n in (2, 4)),
    _case(
        "shards inside nodes",
        4,
        "hybrid_sharded",
        nodes=2,
        trained={"zero_stage": 3, "shard_devices": 2},
    ),
)
_INTERLEAVED: Final = (
    *(_case("scores apart", n, "interleaved_1", trained={"zero_stage": 1}) for n in (2, 4)),
    _case("scores apart, frozen TP 2", 4, "interleaved_1", frozen=_TENSOR),
    _case("trains TP 2", 4, "interleaved_1", trained=_TENSOR),
    *(
        _case(f"over nodes, ZeRO-{z}", 4, "interleaved_2", nodes=2, trained={"zero_stage": z})
        for z in (0, 1, 3)
    ),
    *(
        PlacedCase(
            f"ratio {ratio}", 4, {"ratio": ratio}, trained={"zero_stage": z}, variants=("ppo",)
        )
        for z, ratio in (
            (0, [0.5, 0.5, 0.5, 0.5]),
            (0, [0.25, 0.25, 0.25, 0.25]),
            (1, [0.75, 0.75, 0.25, 0.25]),
            (2, [1, 1, 0.5, 0.5]),
        )
    ),
    PlacedCase("ratio [1, 0.5, 0.5]", 4, {"ratio": [1, 0.5, 0.5]}, variants=("ppo-shared", "grpo")),
    PlacedCase(
        "lists, a device each",
        4,
        {"devices": {"actor": [1], "critic": [0], "reference": [2], "reward": [3]}},
    ),
    PlacedCase(
        "lists that overlap",
        4,
        {"devices": {"actor": [0, 1], "critic": [1, 2], "reference": [3], "reward": [0, 3]}},
    ),
    PlacedCase(
        "lists that begin elsewhere",
        4,
        {"devices": {"actor": [2, 3], "critic": [1], "reference": [0], "reward": [0]}},
        trained={"zero_stage": 2},
    ),
)
_POOLS: Final = (
    *(_case("pools", n, "disaggregated", variants=(*GENERATING, "grpo-functions")) for n in (2, 4)),
    _case("shadow TP 2", 4, "disaggregated", roles={"shadow_actor": _TENSOR}),
    *(
        PlacedCase(f"pools {name}", 4, {"pools": pools}, trained={"zero_stage": zero})
        for name, zero, pools in (
            ("1 and 3", 0, {"train": 0.25, "generate": 0.75}),
            ("3 and 1", 3, {"train": 0.75, "generate": 0.25}),
            ("2 and 2", 2, {"train": 0.5, "generate": 0.5}),
            ("2, 1 and 1", 1, {"train": 0.5, "generate": 0.25, "score": 0.25}),
            ("1, 2 and 1", 0, {"train": 0.25, "generate": 0.5, "score": 0.25}),
        )
    ),
    PlacedCase(
        "TP 2 trains, replicas generate",
        4,
        {"pools": {"train": 0.5, "generate": 0.5}},
        trained=_TENSOR,
    ),
    PlacedCase(
        "ZeRO-3 trains, TP 2 generates, in parts",
        4,
        {"pools": {"train": 0.5, "generate": 0.5}},
        trained={"zero_stage": 3},
        roles={"shadow_actor": _TENSOR},
        changes={
            "rollout": {"micro_batches": 4},
            "training": {"micro_batch_tokens": "auto", "micro_batch_samples": 1},
        },
    ),
    *_TWO_GROUPS,
)
_REFERENCE: Final = (
    _case("TP 2, frozen TP 2", 4, "colocated", trained=_TENSOR, frozen=_TENSOR, variants=("dpo",)),
    _case(
        "TP 2 with ZeRO-3, frozen ZeRO-3",
        4,
        "colocated",
        trained={**_TENSOR, "zero_stage": 3},
        frozen={"zero_stage": 3},
        variants=("dpo",),
    ),
    *(
        _case(
            f"ZeRO-{zero}, {name}",
            4,
            "colocated",
            trained={"zero_stage": zero},
            frozen={"zero_stage": zero},
            changes={"training": training},
            variants=("dpo",),
        )
        for zero, name, training in (
            (2, "pairs one by one", {"micro_batch_tokens": "auto", "micro_batch_samples": 1}),
            (3, "small budget", {"micro_batch_tokens": 24}),
            (3, "checkpointing", {"gradient_checkpointing": True}),
        )
    ),
    *(
        PlacedCase(
            f"the reference on {len(reference)} of 4, {name}",
            4,
            {"devices": {"actor": actor, "reference": reference}},
            trained={"zero_stage": 1},
            frozen=frozen,
            variants=("dpo",),
        )
        for name, actor, reference, frozen in (
            ("whole", [0, 1, 2], [3], {}),
            ("replicas", [0, 1], [2, 3], {}),
            ("in stages", [0, 1], [2, 3], _STAGES),
            ("ZeRO-3", [0], [1, 2, 3], {"zero_stage": 3}),
            ("TP 2, not all its own", [0, 1, 2], [1, 2], _TENSOR),
        )
    ),
    _case(
        "shards inside nodes",
        4,
        "hybrid_sharded",
        nodes=2,
        trained={"zero_stage": 3, "shard_devices": 2},
        variants=("dpo",),
    ),
)
"""A policy that trains on pairs, and what scores them."""
_PIPELINES: Final = (
    _case("two stages", 2, "colocated", trained=_STAGES, variants=_STAGED),
    _case("two stages of two replicas", 4, "colocated", trained=_STAGES, variants=_STAGED),
    _case(
        "two stages of two replicas, ZeRO-1, samples one by one",
        4,
        "colocated",
        trained={**_STAGES, "zero_stage": 1},
        changes={"training": {"micro_batch_tokens": "auto", "micro_batch_samples": 1}},
        variants=_STAGED,
    ),
    _case("two stages, TP 2", 4, "colocated", trained={**_STAGES, **_TENSOR}, variants=_STAGED),
    _case(
        "two stages, gradient checkpointing",
        2,
        "colocated",
        trained=_STAGES,
        changes={"training": {"gradient_checkpointing": True}},
        variants=("ppo-shared",),
    ),
    _case("the actor in stages", 2, "colocated", roles={"actor": _STAGES}, variants=("ppo",)),
    _case("two stages, scores apart", 4, "interleaved_1", trained=_STAGES, variants=("grpo",)),
    _case("two stages, generates TP 2", 4, "tp_generation", trained=_STAGES, variants=("grpo",)),
    PlacedCase(
        "two stages train, TP 2 generates",
        4,
        {"pools": {"train": 0.5, "generate": 0.5}},
        trained=_STAGES,
        roles={"shadow_actor": _TENSOR},
        variants=("ppo-shared", "grpo"),
    ),
    PlacedCase(
        "two stages train, two others generate and score",
        4,
        {"pools": {"train": 0.5, "generate": 0.5}},
        trained=_STAGES,
        roles={"shadow_actor": _STAGES, "reference": _STAGES},
        variants=("ppo-shared", "grpo"),
    ),
)
FULL: Final = (*_COLOCATED, *_INTERLEAVED, *_POOLS, *_REFERENCE, *_PIPELINES)
