"""The loss of supervised fine-tuning."""

from __future__ import annotations

from torch import Tensor

from flexrlhf.learning.algorithms.aggregation import token_mean
from flexrlhf.learning.algorithms.shapes import check_per_token


def supervised_loss(logprobs_BT: Tensor, mask_BT: Tensor, *, num_tokens: int) -> Tensor:
    """Cross-entropy of the answers: loss = -sum(mask * log p) / num_tokens.

    Args:
        logprobs_BT: log-probability of each token under the model, nats.
        mask_BT: bool, True at the tokens to learn.
        num_tokens: such tokens in the global batch.

    Returns:
        A scalar, in nats.

    Raises:
        ShapeError: shapes differ, or `num_tokens` is not positive.

    Source: ours; maximum likelihood.
    """
    check_per_token(mask_BT, logprobs=logprobs_BT)
    return -token_mean(logprobs_BT, mask_BT, num_tokens=num_tokens)
