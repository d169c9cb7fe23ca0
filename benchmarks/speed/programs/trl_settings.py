"""What all trainers of TRL are told alike."""

from __future__ import annotations

from typing import Any


def shared_settings(job: dict[str, Any]) -> dict[str, Any]:
    """Returns the optimiser's settings, and that nothing is written or recomputed."""
    optimiser = job["training"]["optimiser"]
    return {
        "learning_rate": optimiser["learning_rate"],
        "lr_scheduler_type": "constant",
        "adam_beta1": optimiser["betas"][0],
        "adam_beta2": optimiser["betas"][1],
        "adam_epsilon": optimiser["epsilon"],
        "weight_decay": optimiser["weight_decay"],
        "max_grad_norm": optimiser["max_grad_norm"],
        "max_steps": 1_000_000,
        "gradient_checkpointing": False,
        "bf16": job["dtype"] == "bfloat16",
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1_000_000,
        "disable_tqdm": True,
    }
