"""The grid: requests that differ in everything that should decide where roles go."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve
from flexrlhf.planning.cluster.setting import requested_cluster
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.request import PlanRequest

DIMENSIONS: Final[Mapping[str, Sequence[Any]]] = {
    "algorithm": ("ppo", "grpo"),
    "model": ("qwen2.5-7b", "llama-13b", "llama-33b", "llama3.1-70b"),
    "trained": ("all weights", "LoRA"),
    "pool": ("A100", "H100", "H100 + A100", "A100 + V100"),
    "devices": (8, 16, 32, 64, 128, 256),
    "answer": (256, 2048, 8192),
    "reward": ("equal", "a tenth"),
    "batch": (4, 32),
    "speedup": (1, 4),
    "staleness": (0, 1),
}
"""Each value of a dimension stands in equally many cases, in an order of its own."""
NUM_CASES: Final = 108
_TENTHS: Final = {
    "qwen2.5-7b": "qwen2.5-0.5b",
    "llama-13b": "qwen2.5-1.5b",
    "llama-33b": "llama3.2-3b",
    "llama3.1-70b": "qwen2.5-7b",
}
_TYPES: Final = {"A100": "A100-80G", "H100": "H100-80G", "V100": "V100-32G"}
_INSIDE: Final = {
    "A100": "InfiniBand-8x200G",
    "H100": "InfiniBand-8x400G",
    "H100 + A100": "InfiniBand-8x200G",
    "A100 + V100": "InfiniBand-8x100G",
}
_BETWEEN: Final = {"H100 + A100": "InfiniBand-8x200G", "A100 + V100": "Ethernet-100G"}
_GROUP: Final = 4
"""Answers to a prompt under GRPO."""
_MINI_BATCHES: Final = 4


@dataclass(frozen=True, slots=True)
class Case:
    """One request of the grid."""

    algorithm: str
    model: str
    """Of actor, critic and reference."""
    trained: str
    pool: str
    devices: int
    """Half of each kind where they are unlike; at most eight in a node."""
    answer: int
    """The longest, in tokens; the mean is less but for the shortest."""
    reward: str
    """Size of the reward model as a part of the actor's."""
    batch: int
    """Samples of an iteration per device."""
    speedup: int
    staleness: int

    def document(self) -> dict[str, Any]:
        """Returns the case as a config."""
        samples = self.batch * self.devices
        group = _GROUP if self.algorithm == "grpo" else 1
        return {
            "algorithm": {"name": self.algorithm},
            "model": self._models(),
            "data": {"max_prompt_tokens": 256 if self.answer <= 256 else 1024},
            "rollout": {
                "engine": "vllm",
                "max_new_tokens": self.answer,
                "mean_new_tokens": self.answer if self.answer <= 256 else 3 * self.answer // 8,
                "samples_per_prompt": group,
                "speedup": self.speedup,
            },
            "training": {
                "prompts_per_iteration": samples // group,
                "mini_batch_samples": samples // _MINI_BATCHES,
                "precision": "bfloat16",
                "gradient_checkpointing": True,
            },
            "weights": {"max_staleness": self.staleness},
            "cluster": self._cluster(),
        }

    def request(self) -> PlanRequest:
        """Returns what the planner is asked."""
        return request_of(self.document())

    def _models(self) -> dict[str, Any]:
        lora = {"dtype": "bfloat16", "lora": {"rank": 128}} if self.trained == "LoRA" else {}
        frozen = {"dtype": "bfloat16"}
        small = self.model if self.reward == "equal" else _TENTHS[self.model]
        models: dict[str, Any] = {
            "actor": {"shape": self.model, **lora},
            "reference": {"shape": self.model, **frozen},
            "reward": {"shape": small, **frozen},
        }
        if self.algorithm == "ppo":
            models["critic"] = {"shape": self.model, **lora}
        return models

    def _cluster(self) -> dict[str, Any]:
        kinds = self.pool.split(" + ")
        share = self.devices // len(kinds)
        size = min(8, share)
        nodes = [
            {"pool": kind, "count": share // size, "devices": size, "type": _TYPES[kind]}
            for kind in kinds
        ]
        links = {"inside_pool": _INSIDE[self.pool]}
        if len(kinds) > 1:
            links["between_pools"] = _BETWEEN[self.pool]
        return {"nodes": nodes, "links": links}


def request_of(document: Mapping[str, Any]) -> PlanRequest:
    """Returns what a config asks the planner."""
    config = resolve(build_config(document))
    return request_from(config, requested_cluster(config.cluster))


def grid(num_cases: int = NUM_CASES) -> list[Case]:
    """Returns cases in which each value of a dimension is as frequent as any other, shuffled.

    The same number gives the same cases.
    """
    columns: list[list[Any]] = []
    for field in fields(Case):
        values = DIMENSIONS[field.name]
        column = [values[place % len(values)] for place in range(num_cases)]
        random.Random(field.name).shuffle(column)
        columns.append(column)
    return [Case(*row) for row in zip(*columns, strict=True)]
