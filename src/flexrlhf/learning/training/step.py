"""One role's training: gradients gathered over micro-batches, then one optimiser step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from flexrlhf.core.errors import RunFailed
from flexrlhf.learning.data.experience import Batch
from flexrlhf.learning.data.idle_batch import idle_batch
from flexrlhf.learning.training.objectives import GlobalCounts, MicroBatchLoss, Objective
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
        self._failure: RunFailed | None = None

    def accumulate(self, batch: Batch, counts: GlobalCounts) -> None:
        """Adds the gradient of one micro-batch.

        Raises:
            RunFailed: the loss is not finite; nothing was added. With several replicas `step`
                raises it instead, in all of them.
        """
        part = self._forward(batch, counts)
        value = part.loss.item()
        if not math.isfinite(value):
            self._fail(value, batch)
            if not self.backend.needs_lockstep:
                return
        self.backend.backward(part.loss)
        for name, amount in part.sums.items():
            self._sums[name] = self._sums.get(name, torch.zeros(())) + amount.double().cpu()

    def accumulate_nothing(self) -> None:
        """Takes part in a pass of the other replicas, where these go in lockstep."""
        if self.backend.needs_lockstep:
            batch = idle_batch(self.objective.fields).to(self.backend.device)
            part = self._forward(batch, GlobalCounts(num_tokens=2, num_sequences=2, max_tokens=1))
            self.backend.backward(0.0 * part.loss)

    def step(self, counts: GlobalCounts) -> dict[str, float]:
        """Updates the weights and returns the metrics of the mini-batch, all replicas together.

        Raises:
            RunFailed: a loss or the gradient was not finite, in any replica.
        """
        sums = self._sums_of_replicas()
        report = self.backend.step()
        metrics = _normalised(sums, counts)
        prefix = "critic/" if self.role == "critic" else ""
        metrics[f"{prefix}grad_norm"] = report.grad_norm
        metrics[f"{prefix}learning_rate"] = report.learning_rate
        return metrics

    def _forward(self, batch: Batch, counts: GlobalCounts) -> MicroBatchLoss:
        with self.backend.autocast():
            return self.backend.forward(lambda model: self.objective(model, batch, counts))

    def _fail(self, loss: float, batch: Batch) -> None:
        """Raises at once where this is the only replica, else keeps the error for `step`."""
        failure = RunFailed(
            f"The loss of role {self.role} is {loss} on samples {_listed(batch.sample_ids)}.",
            "A loss must be finite.",
            "Look at these samples and their rewards; lower the learning rate.",
        )
        if self.backend.num_replicas == 1:
            raise failure
        # The others are on their way to a sum of gradients, and would wait there for this one.
        self._failure = self._failure or failure

    def _sums_of_replicas(self) -> dict[str, float]:
        """Returns the sums over all replicas, added up in their order.

        Raises:
            RunFailed: a loss was not finite in one of them; the gradient is forgotten.
        """
        own = {
            "sums": {name: total.item() for name, total in self._sums.items()},
            "failure": self._failure and list(self._failure.args),
        }
        self._sums, self._failure = {}, None
        replicas = self.backend.gather(own)
        for replica in replicas:
            if replica["failure"]:
                self.backend.discard_gradient()
                raise RunFailed(*replica["failure"])
        totals: dict[str, float] = {}
        for replica in replicas:
            for name, amount in replica["sums"].items():
                totals[name] = totals.get(name, 0.0) + amount
        return totals


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
