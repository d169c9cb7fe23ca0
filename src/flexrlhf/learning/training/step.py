"""One role's training: gradients gathered over micro-batches, then one optimiser step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from flexrlhf.core.errors import RunFailed
from flexrlhf.learning.data.experience import Batch
from flexrlhf.learning.data.idle_batch import idle_batch
from flexrlhf.learning.models.pipeline import StagePass
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
        self._maxima: dict[str, float] = {}
        self._waiting: list[StagePass[MicroBatchLoss]] = []
        self._failure: RunFailed | None = None

    def accumulate(self, batch: Batch, counts: GlobalCounts) -> None:
        """Adds the gradient of one micro-batch; where the model has stages, `run_waiting` does.

        Raises:
            RunFailed: the loss is not finite; nothing was added. With several replicas or stages
                `step` raises it instead, in all of them.
        """
        if self.backend.pipeline is not None:
            self._waiting.append(self._stage_pass(batch, counts))
            return
        part = self._forward(batch, counts)
        if not self._is_finite(part, batch) and not self.backend.needs_lockstep:
            return
        self.backend.backward(part.loss)
        self._add(part)

    def run_waiting(self) -> None:
        """Takes what `accumulate` was given through the stages of the model, if it has any.

        The more micro-batches go together, the less the stages wait for each other.
        """
        waiting, self._waiting = self._waiting, []
        pipeline = self.backend.pipeline
        if pipeline is None or not waiting:
            return
        parts = pipeline.run(waiting, loss_of=_loss, context=self.backend.autocast)
        for one, part in zip(waiting, parts, strict=False):  # none but in the last stage
            self._is_finite(part, one.batch)
            self._add(part)

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
        self.run_waiting()
        sums, maxima = self._of_replicas()
        report = self.backend.step()
        metrics = normalised(sums, counts) | maxima
        prefix = "critic/" if self.role == "critic" else ""
        metrics[f"{prefix}grad_norm"] = report.grad_norm
        metrics[f"{prefix}learning_rate"] = report.learning_rate
        return metrics

    def measure(self, batches: Sequence[Batch], counts: GlobalCounts) -> dict[str, float]:
        """Returns the sums over batches that nothing is learnt from.

        Every process of a replica gives the same batches and gets the same sums.
        """
        pipeline = self.backend.pipeline
        if pipeline is None:
            with torch.no_grad():
                return _totals([self._forward(batch, counts).sums for batch in batches])
        passes = [self._stage_pass(batch, counts) for batch in batches]
        parts = pipeline.run(passes, context=self.backend.autocast)
        return self.backend.gather(_totals([part.sums for part in parts]))[self.backend.replica]

    def _stage_pass(self, batch: Batch, counts: GlobalCounts) -> StagePass[MicroBatchLoss]:
        return StagePass(batch, lambda model: self.objective(model, batch, counts))

    def _forward(self, batch: Batch, counts: GlobalCounts) -> MicroBatchLoss:
        with self.backend.autocast():
            return self.backend.forward(lambda model: self.objective(model, batch, counts))

    def _add(self, part: MicroBatchLoss) -> None:
        for name, amount in part.sums.items():
            self._sums[name] = self._sums.get(name, torch.zeros(())) + amount.double().cpu()
        for name, amount in part.maxima.items():
            self._maxima[name] = _larger(self._maxima.get(name, -math.inf), amount.item())

    def _is_finite(self, part: MicroBatchLoss, batch: Batch) -> bool:
        """Raises at once where nobody waits for this process, else keeps the error for `step`."""
        loss = part.loss.item()
        if math.isfinite(loss):
            return True
        failure = RunFailed(
            f"The loss of role {self.role} is {loss} on samples {_listed(batch.sample_ids)}.",
            "A loss must be finite.",
            "Look at these samples and their rewards; lower the learning rate.",
        )
        if self.backend.num_replicas == 1 and self.backend.pipeline is None:
            raise failure
        # The others are on their way to a sum of gradients, and would wait there for this one.
        self._failure = self._failure or failure
        return False

    def _of_replicas(self) -> tuple[dict[str, float], dict[str, float]]:
        """Returns sums over all replicas, added up in their order, and maxima.

        Raises:
            RunFailed: a loss was not finite in one of them; the gradient is forgotten.
        """
        own = {
            "sums": {name: total.item() for name, total in self._sums.items()},
            "maxima": self._maxima,
            "failure": self._failure and list(self._failure.args),
        }
        self._sums, self._maxima, self._failure = {}, {}, None
        replicas = self.backend.gather(own)
        for replica in replicas:
            if replica["failure"]:
                self.backend.discard_gradient()
                raise RunFailed(*replica["failure"])
        totals: dict[str, float] = {}
        largest: dict[str, float] = {}
        for replica in replicas:
            for name, amount in replica["sums"].items():
                totals[name] = totals.get(name, 0.0) + amount
            for name, amount in replica["maxima"].items():
                largest[name] = _larger(largest.get(name, -math.inf), amount)
        return totals, largest


def _larger(one: float, other: float) -> float:
    """Returns the larger number; nan, which `max` may lose, if either is."""
    return one + other if math.isnan(one) or math.isnan(other) else max(one, other)


def _loss(part: MicroBatchLoss) -> Tensor:
    return part.loss


def _totals(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for sums in parts:
        for name, amount in sums.items():
            totals[name] = totals.get(name, 0.0) + amount.item()
    return totals


def normalised(sums: Mapping[str, float], counts: GlobalCounts) -> dict[str, float]:
    """Turns sums over the rows that were counted into the metrics of `metrics.jsonl`."""
    num_pairs = counts.num_sequences / 2
    divided = {
        "clipped_tokens": ("ratio/clip_fraction", counts.num_tokens),
        "ratio_sum": ("ratio/mean", counts.num_tokens),
        "approx_kl_sum": ("ratio/approx_kl", counts.num_tokens),
        "importance_sum": ("importance/mean", counts.num_tokens),
        "capped_tokens": ("importance/capped_fraction", counts.num_tokens),
        "behaviour_kl_sum": ("importance/approx_kl", counts.num_tokens),
        "clipped_values": ("critic/clip_fraction", counts.num_tokens),
        "entropy_sum": ("entropy/mean", counts.num_tokens),
        "correct_pairs": ("accuracy/preference", num_pairs),
        "chosen_reward_sum": ("implicit_reward/chosen", num_pairs),
        "rejected_reward_sum": ("implicit_reward/rejected", num_pairs),
        "reward_margin_sum": ("implicit_reward/margin", num_pairs),
        "chosen_logprob_sum": ("logprobs/chosen", num_pairs),
        "rejected_logprob_sum": ("logprobs/rejected", num_pairs),
    }
    metrics: dict[str, float] = {}
    for name, total in sums.items():
        key, divisor = divided.get(name, (name, 1))
        metrics[key] = total / divisor
    return metrics


def _listed(sample_ids: tuple[int, ...]) -> str:
    shown = ", ".join(str(sample_id) for sample_id in sample_ids[:4])
    return shown + (", ..." if len(sample_ids) > 4 else "")
