"""The loss of a reward model on pairs of answers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from flexrlhf.learning.algorithms.shapes import check_counts, check_per_sequence


@dataclass(frozen=True, slots=True)
class PreferenceLoss:
    """A preference loss with what one watches beside it; both add up over shards."""

    loss: Tensor
    """To minimise; the only field with a gradient."""
    num_correct: Tensor
    """int64: pairs whose chosen answer scores strictly higher, whatever the margin."""


def pairwise_reward_loss(
    chosen_B: Tensor, rejected_B: Tensor, *, num_pairs: int, margin: float | Tensor = 0.0
) -> PreferenceLoss:
    """Negative log-likelihood of the preferences under the Bradley-Terry model.

    loss = -sum(log sigmoid(chosen - rejected - margin)) / num_pairs

    Args:
        chosen_B: score of the preferred answer of each pair.
        rejected_B: score of the other answer.
        num_pairs: pairs in the global batch.
        margin: how much higher the chosen one should score, one number or one per pair [B].

    Raises:
        ShapeError: shapes differ, or `num_pairs` is not positive.

    Source: Ouyang et al. 2022, eq. 1 (arXiv:2203.02155); margin: Llama 2, eq. 2
    (arXiv:2307.09288).
    """
    check_per_sequence(chosen=chosen_B, rejected=rejected_B)
    if isinstance(margin, Tensor):
        check_per_sequence(chosen=chosen_B, margin=margin)
    check_counts(num_pairs=num_pairs)
    difference_B = chosen_B - rejected_B
    return PreferenceLoss(
        loss=-functional.logsigmoid(difference_B - margin).sum() / num_pairs,
        num_correct=(difference_B > 0).sum(),
    )
