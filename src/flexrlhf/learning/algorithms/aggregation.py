"""Ways to make one loss of the numbers per token, normalised by counts of the global batch."""

from __future__ import annotations

from typing import Final, Literal, get_args

from torch import Tensor

from flexrlhf.core.errors import ConfigError, nearest
from flexrlhf.learning.algorithms.shapes import check_counts, check_per_token

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "token_sum_norm"]
AGGREGATIONS: Final[tuple[Aggregation, ...]] = get_args(Aggregation)


def aggregate(
    values_BT: Tensor,
    mask_BT: Tensor,
    mode: Aggregation,
    *,
    num_tokens: int,
    num_sequences: int,
    max_tokens: int,
) -> Tensor:
    """Sums the trainable tokens of whole sequences and divides by global counts.

    Shards and micro-batches that pass the same counts add up to the loss of the whole batch, and so
    do their gradients. A sequence must not be cut between shards.

        token_mean      sum_b sum_t x / num_tokens
        sequence_mean   sum_b (sum_t x / own tokens) / num_sequences
        sequence_sum    sum_b sum_t x / num_sequences
        token_sum_norm  sum_b sum_t x / (num_sequences * max_tokens)

    Args:
        values_BT: a number per token; anything, even nan, outside the mask.
        mask_BT: bool, True at trainable tokens. A row without any adds nothing.
        mode: one of `AGGREGATIONS`.
        num_tokens: trainable tokens in the global batch.
        num_sequences: sequences in the global batch.
        max_tokens: the constant length of `token_sum_norm`, such as the limit of new tokens.

    Returns:
        A scalar.

    Raises:
        ShapeError: shapes differ, or a count that `mode` divides by is not positive.
        ConfigError: `mode` is unknown.

    Source: token_mean: DAPO, section 3.3 (arXiv:2503.14476); sequence_mean: GRPO, eq. 3
    (arXiv:2402.03300); token_sum_norm: Dr.GRPO (arXiv:2503.20783).
    """
    check_per_token(mask_BT, values=values_BT)
    if mode == "token_mean":
        return token_mean(values_BT, mask_BT, num_tokens=num_tokens)
    check_counts(num_sequences=num_sequences)
    sums_B = values_BT.masked_fill(~mask_BT, 0.0).sum(dim=1)
    if mode == "sequence_mean":
        own_tokens_B = mask_BT.sum(dim=1).clamp(min=1)
        return (sums_B / own_tokens_B).sum() / num_sequences
    if mode == "sequence_sum":
        return sums_B.sum() / num_sequences
    if mode == "token_sum_norm":
        check_counts(max_tokens=max_tokens)
        return sums_B.sum() / (num_sequences * max_tokens)
    raise ConfigError(
        f"Loss aggregation {mode!r} is unknown.",
        f"Known: {', '.join(AGGREGATIONS)}.",
        nearest(mode, AGGREGATIONS) or "Choose one of these.",
    )


def token_mean(values_BT: Tensor, mask_BT: Tensor, *, num_tokens: int) -> Tensor:
    """Returns the sum over trainable tokens, divided by the global `num_tokens`.

    Raises:
        ShapeError: shapes differ, or `num_tokens` is not positive.
    """
    check_per_token(mask_BT, values=values_BT)
    check_counts(num_tokens=num_tokens)
    return values_BT.masked_fill(~mask_BT, 0.0).sum() / num_tokens
