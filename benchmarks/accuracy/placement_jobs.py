"""Two small jobs and many ways to place them on two and four processes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from flexrlhf.core.names import Role, StrategyName
from flexrlhf.planning.placement.plan import Plan, RolePlacement

JOBS: Final = ("ppo", "grpo")
_VOCABULARY: Final = 512
_SHORTEST, _LONGEST = 8, 24
_PROMPTS: Final = 256
_REWARD: Final = """def spread(prompts, completions, **columns):
    return [len(set(text.split())) / 32 for text in completions]
"""
_ROLES: Final[Mapping[str, tuple[Role, ...]]] = {
    "ppo": ("actor", "critic", "reference", "reward"),
    "grpo": ("actor", "reference", "reward"),
}
_TRAINED: Final[Mapping[str, tuple[Role, ...]]] = {"ppo": ("actor", "critic"), "grpo": ("actor",)}


@dataclass(frozen=True, slots=True)
class Case:
    """One placement of one job."""

    job: str
    name: str
    workers: int
    plan: Plan
    max_staleness: int = 0


def write_files(folder: Path) -> None:
    """Writes tokenizer, prompts and reward function of the jobs."""
    words = {"<unk>": 0, "<end>": 1} | {f"w{number}": number for number in range(2, _VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>", pad_token="<end>"
    ).save_pretrained(folder / "tokenizer")
    draw = random.Random(0)
    lines = [
        " ".join(f"w{draw.randrange(2, _VOCABULARY)}" for _ in range(length))
        for length in (draw.randint(_SHORTEST, _LONGEST) for _ in range(_PROMPTS))
    ]
    rows = "".join(json.dumps({"prompt": line}) + "\n" for line in lines)
    (folder / "prompts.jsonl").write_text(rows, encoding="utf-8")
    (folder / "rewards.py").write_text(_REWARD, encoding="utf-8")


def job_document(
    job: str, folder: Path, cluster: Mapping[str, Any], *, iterations: int, max_staleness: int = 0
) -> dict[str, Any]:
    """Returns the config of a job whose files `write_files` wrote.

    Args:
        job: of `JOBS`. `ppo` has four models of 1.4 to 3.4 million parameters, `grpo` two.
        folder: of the files.
        cluster: its section.
        iterations: to train.
        max_staleness: of weights that generate.
    """
    document: dict[str, Any] = {
        "algorithm": {"name": job},
        "data": {
            "prompts": {"path": str(folder / "prompts.jsonl")},
            "max_prompt_tokens": _LONGEST,
            "mean_prompt_tokens": (_SHORTEST + _LONGEST) / 2,
        },
        "run": {"seed": 1, "trackers": [], "checkpoint_every": 1000, "recorded_samples": 8},
        "weights": {"max_staleness": max_staleness},
        "cluster": dict(cluster),
    }
    actor = _model(256, 4) | {"tokenizer": str(folder / "tokenizer")}
    if job == "ppo":
        return document | {
            "model": {"actor": actor, "critic": _model(192, 3), "reward": _model(192, 3)},
            "rollout": {"max_new_tokens": 32, "mean_new_tokens": 31.0, "samples_per_prompt": 1},
            "training": {
                "iterations": iterations,
                "prompts_per_iteration": 32,
                "mini_batch_samples": 32,
                "micro_batch_samples": 8,
            },
        }
    return document | {
        "model": {"actor": actor},
        "reward": {"functions": [{"path": f"{folder / 'rewards.py'}:spread"}]},
        "rollout": {"max_new_tokens": 48, "mean_new_tokens": 45.8, "samples_per_prompt": 4},
        "training": {
            "iterations": iterations,
            "prompts_per_iteration": 8,
            "mini_batch_samples": 32,
            "micro_batch_samples": 8,
        },
    }


def cases() -> Iterator[Case]:
    """Yields every placement that is measured, those of few workers first."""
    for job in JOBS:
        yield from _on_two(job)
    for job in JOBS:
        yield from _on_four(job)


def _on_two(job: str) -> Iterator[Case]:
    both = (0, 1)
    for stage in (0, 1, 2, 3):
        yield _together(job, f"colocated, ZeRO-{stage}", both, zero_stage=stage)
    yield _together(job, "colocated, tensor 2", both, tensor=2)
    yield _together(job, "colocated, generation split", both, zero_stage=1, generation=2)
    if job == "ppo":
        held = {role: _placed(both, zero_stage=1) for role in _ROLES[job]}
        apart = held | {"reference": _placed((0,)), "reward": _placed((1,))}
        yield _case(job, "interleaved", "interleaved_1", 2, apart)
        one = held | {"reward": _placed((1,))}
        yield _case(job, "reward on one", "reward_on_one", 2, one)
    yield _per_token(job, both)
    for parts in (1, 2, 4):
        yield _apart(job, f"disaggregated 1+1, {_parts(parts)}", (0,), (1,), parts)
    yield _apart(job, "disaggregated 1+1, 2 parts, 1 stale", (0,), (1,), 2, stale=1)


def _on_four(job: str) -> Iterator[Case]:
    every = (0, 1, 2, 3)
    yield _together(job, "colocated, ZeRO-0", every)
    yield _together(job, "colocated, tensor 2 x data 2", every, tensor=2, zero_stage=1)
    yield _apart(job, "disaggregated 2+2, 1 part", (0, 1), (2, 3), 1)
    yield _apart(job, "disaggregated 2+2, 2 parts", (0, 1), (2, 3), 2)
    yield _apart(job, "disaggregated 1+3, 2 parts", (0,), (1, 2, 3), 2)
    yield _apart(job, "disaggregated 2+2, 2 parts, 1 stale", (0, 1), (2, 3), 2, stale=1)


def _together(
    job: str,
    name: str,
    devices: tuple[int, ...],
    *,
    tensor: int = 1,
    zero_stage: int = 0,
    generation: int | None = None,
) -> Case:
    placement = {
        role: _placed(devices, tensor=tensor, zero_stage=zero_stage) for role in _ROLES[job]
    }
    if generation is not None:
        placement["actor"] = RolePlacement(
            devices,
            data_parallel=len(devices),
            zero_stage=zero_stage,
            generation="tensor_parallel",
            generation_tensor_parallel=generation,
        )
    return _case(job, name, "colocated", len(devices), placement)


def _per_token(job: str, devices: tuple[int, ...]) -> Case:
    """ZeRO-3, whose parts are gathered for every layer of every token."""
    placement = {role: _placed(devices, zero_stage=3) for role in _ROLES[job]}
    actor = placement["actor"]
    placement["actor"] = replace(actor, generation="per_token")
    return _case(job, "ZeRO-3 generation", "zero3_generation", len(devices), placement)


def _apart(
    job: str,
    name: str,
    trains: tuple[int, ...],
    serves: tuple[int, ...],
    parts: int,
    *,
    stale: int = 0,
) -> Case:
    stage = 1 if len(trains) > 1 else 0
    placement = {role: _placed(trains, zero_stage=stage) for role in _TRAINED[job]}
    shadows: tuple[Role, ...] = ("shadow_actor", "shadow_critic")
    served = (*shadows[: len(_TRAINED[job])], "reference", "reward")
    placement |= {role: _placed(serves) for role in served}
    workers = len(trains) + len(serves)
    return _case(job, name, "disaggregated", workers, placement, parts=parts, stale=stale)


def _case(
    job: str,
    name: str,
    strategy: StrategyName,
    workers: int,
    placement: Mapping[Role, RolePlacement],
    *,
    parts: int = 1,
    stale: int = 0,
) -> Case:
    plan = Plan(
        rank=1,
        strategy=strategy,
        feasible=True,
        why="",
        placement=placement,
        rollout_micro_batches=parts,
    )
    return Case(job, name, workers, plan, stale)


def _placed(devices: tuple[int, ...], *, tensor: int = 1, zero_stage: int = 0) -> RolePlacement:
    replicas = len(devices) // tensor
    stage = zero_stage if replicas > 1 else 0
    return RolePlacement(devices, tensor_parallel=tensor, data_parallel=replicas, zero_stage=stage)


def _model(width: int, layers: int) -> dict[str, Any]:
    architecture = {
        "model_type": "llama",
        "vocab_size": _VOCABULARY,
        "hidden_size": width,
        "intermediate_size": 8 * width // 3 // 8 * 8,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "num_key_value_heads": width // 64 * 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    return {"init": "random", "architecture": architecture}


def _parts(number: int) -> str:
    return "1 part" if number == 1 else f"{number} parts"
