"""A tiny role in float64, samples of unlike lengths, and its training over several steps.

Used alike by the one process whose results are the measure, and by the ranks of a pool.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from flexrlhf.core.errors import FlexError
from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.data.collation import COLLATE, num_sequences, num_trainable_tokens
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.models.gradient_checkpointing import enable_gradient_checkpointing
from flexrlhf.learning.models.loading import load_policy, load_scorer, load_shared_actor_critic
from flexrlhf.learning.models.parallelise import ParallelModel, parallelise
from flexrlhf.learning.models.role_mesh import RoleMesh, ShardDegrees
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.training.objectives import (
    GlobalCounts,
    Objective,
    PolicyObjective,
    SharedObjective,
    ValueObjective,
)
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.optimizer import OptimizerSettings
from flexrlhf.learning.training.parallel import ParallelBackend
from flexrlhf.learning.training.step import RoleTrainer

VOCABULARY = 29
LENGTHS = (9, 14, 5, 12, 7, 10, 6)
MAKERS = {
    "policy": load_policy,
    "scorer": load_scorer,
    "shared": load_shared_actor_critic,
    "shared, policy only": load_shared_actor_critic,
}
SETTINGS = OptimizerSettings(
    learning_rate=0.01,
    total_steps=5,
    schedule="cosine",
    warmup_steps=1,
    weight_decay=0.1,
    max_grad_norm=0.5,
)
_POLICY = PolicyObjective(
    clip_low=0.2,
    clip_high=0.3,
    dual_clip=None,
    aggregation="token_mean",
    entropy_coef=0.01,
    kl_coef=0.1,
    kl_estimator="k3",
    temperature=0.7,
)
_VALUE = ValueObjective(clip=0.2)
OBJECTIVES: dict[str, Objective] = {
    "policy": _POLICY,
    "scorer": _VALUE,
    "shared": SharedObjective(_POLICY, _VALUE, value_coef=0.5),
    "shared, policy only": _POLICY,
}


NUM_STEPS = 3
ZERO = {f"zero{stage}": {"data": 2, "zero_stage": stage} for stage in range(4)}
TENSOR = {"tp2": {"tensor": 2}}
FOUR = {
    "zero1 on 4": {"data": 4, "zero_stage": 1},
    "zero3 on 4": {"data": 4, "zero_stage": 3},
    "hybrid zero1": {"data": 4, "zero_stage": 1, "shard_replicas": 2},
    "hybrid zero2": {"data": 4, "zero_stage": 2, "shard_replicas": 2},
    "hybrid zero3": {"data": 4, "zero_stage": 3, "shard_replicas": 2},
    "tp2 x zero0": {"tensor": 2, "data": 2, "zero_stage": 0},
    "tp2 x zero1": {"tensor": 2, "data": 2, "zero_stage": 1},
    "tp2 x zero3": {"tensor": 2, "data": 2, "zero_stage": 3},
}
STAGES = {
    "pp2": {"pipeline": 2},
    "pp4": {"pipeline": 4},
    "pp2 x zero0": {"pipeline": 2, "data": 2},
    "pp2 x zero1": {"pipeline": 2, "data": 2, "zero_stage": 1},
    "pp2 x tp2": {"pipeline": 2, "tensor": 2},
}
SPLITS: dict[str, dict[str, Any]] = {**ZERO, **TENSOR, **FOUR, **STAGES}


def make_model(kind: str, **how: Any) -> nn.Module:
    """Makes a `policy` (with tied weights), a `scorer` or a `shared` actor-critic.

    With the policy's objective alone the shared one's value head never gets a gradient.
    """
    return MAKERS[kind](make_source(**how))


def make_source(
    *,
    family: str = "llama",
    dtype: str = "float64",
    seed: int = 0,
    layers: int = 2,
    tied: bool = True,
) -> ModelSource:
    """Says what tiny model to make."""
    architecture: dict[str, Any] = {
        "model_type": family,
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
        "tie_word_embeddings": tied,
    }
    if family == "qwen3":
        architecture["head_dim"] = 4
    if family == "gpt2":
        architecture = {
            "model_type": family,
            "vocab_size": VOCABULARY,
            "n_embd": 16,
            "n_layer": layers,
            "n_head": 4,
            "n_positions": 64,
            "initializer_range": 0.3,
        }
    return ModelSource(architecture=architecture, dtype=dtype, seed=seed)


def make_samples() -> list[Sample]:
    """Seven answers; their fields are noise of the size that training sees."""
    generator = torch.Generator().manual_seed(3)

    def noise(length: int) -> Tensor:
        return torch.randn(length, generator=generator, dtype=torch.float64)

    made: list[Sample] = []
    for number, length in enumerate(LENGTHS):
        tokens = torch.randint(VOCABULARY, (length,), generator=generator)
        num_prompt = 1 + length // 3
        mask = torch.arange(length) >= num_prompt
        fields = {
            "old_logprobs": -3.0 + noise(length),
            "reference_logprobs": -3.0 + noise(length),
            "advantages": noise(length),
            "values": noise(length),
            "returns": noise(length),
        }
        made.append(
            Sample(
                sample_id=100 + number,
                prompt=Prompt(number, tuple(tokens[:num_prompt].tolist()), ""),
                tokens=tokens,
                num_prompt_tokens=num_prompt,
                mask=mask,
                fields={name: values * mask for name, values in fields.items()},
            )
        )
    return made


def counts_of(samples: Sequence[Sample]) -> GlobalCounts:
    """Returns the sizes of a mini-batch."""
    return GlobalCounts(
        sum(num_trainable_tokens(sample) for sample in samples),
        sum(num_sequences(sample) for sample in samples),
        max_tokens=12,
    )


def train(
    trainer: RoleTrainer,
    *,
    num_steps: int,
    micro_batch: int = 2,
    first_step: int = 0,
    samples: list[Sample] | None = None,
) -> list[dict[str, float]]:
    """Takes steps on mini-batches of which each replica has every n-th sample; returns metrics.

    The mini-batch of an odd step has two samples only, so that some replicas may have none.
    """
    backend = trainer.backend
    everything = samples or make_samples()
    metrics = []
    for step in range(first_step, first_step + num_steps):
        mini_batch = everything if step % 2 == 0 else everything[1:3]
        counts = counts_of(mini_batch)
        own = mini_batch[backend.replica :: backend.num_replicas]
        cut = [own[i : i + micro_batch] for i in range(0, len(own), micro_batch)]
        num_passes = backend.agree_max(len(cut))
        for part in cut:
            trainer.accumulate(COLLATE["prompts"](part, trainer.objective.fields), counts)
        for _ in range(num_passes - len(cut)):
            trainer.accumulate_nothing()
        metrics.append(trainer.step(counts))
    return metrics


def error_of(run: Any) -> str:
    """Returns what a call raises."""
    try:
        run()
    except FlexError as error:
        return str(error)
    return "no error"


@cache
def alone(
    kind: str, family: str, *, layers: int = 2, tied: bool = True
) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Returns metrics and final weights of one process."""
    model = make_model(kind, family=family, layers=layers, tied=tied)
    trainer = RoleTrainer("actor", OneDeviceBackend(model, SETTINGS), OBJECTIVES[kind])
    metrics = train(trainer, num_steps=NUM_STEPS, micro_batch=7)
    return metrics, dict(model.state_dict())


@cache
def mesh_of(ranks: tuple[int, ...], degrees: ShardDegrees) -> RoleMesh:
    """Makes groups once for all cases that need the same ones, in every rank alike."""
    return RoleMesh.create(ranks, degrees)


def split_trainer(
    kind: str,
    family: str,
    degrees: dict[str, Any],
    *,
    ranks: Sequence[int] | None = None,
    seed: int = 0,
    dtype: str = "float64",
    checkpointing: bool = False,
    layers: int = 2,
    tied: bool = True,
) -> tuple[RoleTrainer, ParallelModel] | None:
    """Makes this rank's part of a role on some ranks, else the first ones; None outside of it."""
    gc.collect()
    degree = ShardDegrees(**degrees)
    mesh = mesh_of(tuple(ranks or range(degree.size)), degree)
    if not mesh.is_member:
        return None
    model = make_model(kind, family=family, dtype=dtype, seed=seed, layers=layers, tied=tied)
    if checkpointing:
        enable_gradient_checkpointing(model)
    parallel = parallelise(model, mesh, trains=True)
    backend = ParallelBackend(parallel, SETTINGS)
    return RoleTrainer("actor", backend, OBJECTIVES[kind]), parallel


def farthest(parallel: ParallelModel, expected: dict[str, Tensor]) -> dict[str, Any]:
    """Returns how far this rank's parts are from the whole weights, and which parts it has."""
    errors, boxes = [0.0], {}
    for name, shard in parallel.shards().items():
        whole = expected[name]
        assert shard.shape == tuple(whole.shape), name
        expected_part = whole[shard.box.within(Box.whole(shard.shape))]
        errors.append((shard.tensor - expected_part).abs().max().item())
        boxes[name] = [shard.box.start, shard.box.stop]
    return {"error": max(errors), "boxes": boxes}


def missing(parts: Sequence[dict[str, Any]], expected: dict[str, Tensor]) -> list[str]:
    """Returns the weights of which no rank has some numbers; tied ones have one name."""
    held = {name for part in parts for name in part}
    rest = {name: [Box.whole(tuple(expected[name].shape))] for name in held}
    for part in parts:
        for name, (start, stop) in part.items():
            box = Box(tuple(start), tuple(stop))
            rest[name] = [piece for left in rest[name] for piece in left.minus(box)]
    untied = {expected[name].data_ptr(): name for name in sorted(expected)}
    absent = len(untied) - len(held)
    return [name for name, left in rest.items() if left] + ["another"] * absent
