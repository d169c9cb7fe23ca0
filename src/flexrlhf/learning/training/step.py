"""One role's training: gradients gathered over micro-batches, then one optimiser step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from flexrlhf.core.errors import RunFailed
from flexrlhf.learning.data.experience import Batch
from flexrlhf.learning.training.objectives import GlobalCounts, Objective
from flexrlhf.learning.training.protocol import TrainBackend


class RoleTrainer:
    """Feeds micro-batches of one role through its objective into its backend.

    Args:
        role: name for error messages and metrics.
        backend: holds weights and optimiser.
        objective: what the role learns.
    """

    def __init__(self, role: str, backend: TrainBackend, objective: Objective) -> None:
        self.role = role
        self.backend = backend
        self.objective = objective
        self._sums: dict[str, Tensor] = {}

    def accumulate(self, batch: Batch, counts: GlobalCounts) -> None:
        """Adds the gradient of one micro-batch.

        Raises:
            RunFailed: the loss is not finite; nothing was added.
        """
        with self.backend.autocast():
            part = self.objective(self.backend.model, batch, counts)
        value = part.loss.item()
        if not math.isfinite(value):
            raise RunFailed(
                f"The loss of role {self.role} is {value} on samples {_listed(batch.sample_ids)}.",
                "A loss must be finite.",
                "Look at these samples and their rewards; lower the learning rate.",
            )
        self.backend.backward(part.loss)
        for name, amount in part.sums.items():
            self._sums[name] = self._sums.get(name, torch.zeros(())) + amount.double().cpu()

    def step(self, counts: GlobalCounts) -> dict[str, float]:
        """Updates the weights and returns the metrics of the mini-batch."""
        report = self.backend.step()
        sums, self._sums = self._sums, {}
        metrics = _normalised({name: total.item() for name, total in sums.items()}, counts)
        prefix = "critic/" if self.role == "critic" else ""
        metrics[f"{prefix}grad_norm"] = report.grad_norm
        metrics[f"{prefix}learning_rate"] = report.learning_rate
        return metrics


def _normalised(sums: Mapping[str, float], counts: GlobalCounts) -> dict[str, float]:
    """Turns sums over a mini-batch into the metrics of `metrics.jsonl`."""
    divided = {
        "clipped_tokens": ("ratio/clip_fraction", counts.num_tokens),
        "ratio_sum": ("ratio/mean", counts.num_tokens),
        "approx_kl_sum": ("ratio/approx_kl", counts.num_tokens),
        "clipped_values": ("critic/clip_fraction", counts.num_tokens),
        "entropy_sum": ("entropy/mean", counts.num_tokens),
        "correct_pairs": ("accuracy/preference", counts.num_sequences / 2),
    }
    metrics: dict[str, float] = {}
    for name, total in sums.items():
        key, divisor = divided.get(name, (name, 1))
        metrics[key] = total / divisor
    return metrics


def _listed(sample_ids: tuple[int, ...]) -> str:
    shown = ", ".join(str(sample_id) for sample_id in sample_ids[:4])
    return shown + (", ..." if len(sample_ids) > 4 else "")
