"""The YAML form of the constants of one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flexrlhf.planning.costs.profiled.constants import (
    LogitCost,
    MemoryConstants,
    PassCost,
    ProfiledCosts,
    RowSpeed,
    UpdateCost,
    WholeCost,
    WidthSpeed,
)
from flexrlhf.planning.costs.profiled.file_checks import PARTS


def costs_document(costs: ProfiledCosts) -> dict[str, Any]:
    """Returns the sections that hold the constants."""
    return {
        "host_s": {
            "task": costs.task_s,
            "answer": costs.answer_s,
            "barrier_sample": costs.barrier_s,
            **_named("score", costs.score),
            **_named("train", costs.train),
            **_named("decode", costs.decode),
        },
        "update_s": {
            "step": costs.update.step_s,
            "tensor": costs.update.tensor_s,
            "param": costs.update.param_s,
        },
        "logit_s": {
            "score": costs.logits.score_s,
            "train": costs.logits.train_s,
            "draw": costs.logits.draw_s,
        },
        "memory": {
            "read_bytes_per_s": costs.memory.read_bandwidth,
            "cache_bytes_per_s": costs.memory.cache_bandwidth,
            "process_bytes": costs.memory.process_bytes,
            "allocator_overhead": costs.memory.overhead,
            "logit_copies": costs.memory.logit_copies,
        },
        "layer_flops_per_s": [
            {"width": speed.width, "score": speed.score, "train": speed.train}
            for speed in costs.widths
        ],
        "row_flops_per_s": [{"rows": s.rows, "speed": s.speed} for s in costs.rows],
        "wholes": asdict(costs.wholes),
    }


def costs_from(sections: Mapping[str, Any], dtype: str) -> ProfiledCosts:
    """Returns what `costs_document` wrote.

    Args:
        sections: checked.
        dtype: of the numbers that were computed with.
    """
    host, memory = sections["host_s"], sections["memory"]
    logits, update = sections["logit_s"], sections["update_s"]
    return ProfiledCosts(
        dtype=dtype,
        task_s=host["task"],
        answer_s=host["answer"],
        barrier_s=host["barrier_sample"],
        score=_pass_cost("score", host),
        train=_pass_cost("train", host),
        decode=_pass_cost("decode", host),
        widths=tuple(WidthSpeed(**row) for row in sections["layer_flops_per_s"]),
        rows=tuple(RowSpeed(**row) for row in sections["row_flops_per_s"]),
        logits=LogitCost(**{f"{key}_s": seconds for key, seconds in logits.items()}),
        update=UpdateCost(**{f"{key}_s": seconds for key, seconds in update.items()}),
        memory=MemoryConstants(
            memory["read_bytes_per_s"],
            memory["cache_bytes_per_s"],
            memory["process_bytes"],
            memory["allocator_overhead"],
            memory["logit_copies"],
        ),
        wholes=WholeCost(**sections.get("wholes", {})),
    )


def _named(work: str, cost: PassCost) -> dict[str, float]:
    return {
        f"{work}_pass": cost.pass_s,
        f"{work}_layer": cost.layer_s,
        f"{work}_sequence": cost.sequence_s,
        f"{work}_sequence_layer": cost.sequence_layer_s,
    }


def _pass_cost(work: str, host: Mapping[str, float]) -> PassCost:
    return PassCost(*(host[f"{work}_{part}"] for part in PARTS))
