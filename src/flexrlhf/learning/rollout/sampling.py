"""From logits to tokens: temperature, top-k, top-p, and one uniform number per token.

Ties: greedy takes the lowest id; top-k keeps every token as likely as the k-th; top-p takes equally
likely tokens in order of their ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flexrlhf.core.errors import RunFailed
from flexrlhf.learning.rollout.protocol import Sampling


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """One token per sequence; all [B]."""

    tokens: Tensor
    """int64."""
    logprobs: Tensor
    """Of the full softmax of logits / temperature, float32 or float64."""
    sampling_logprobs: Tensor
    """Of the distribution drawn from; zero when greedy."""


def draw_tokens(
    logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling, *, positions_B: Tensor
) -> DrawnTokens:
    """Draws one token of every response.

    Args:
        logits_BV: of any floating type; computed with in float32 or better.
        uniforms_B: float64 in (0, 1), unused when greedy.
        sampling: temperature, filters and end tokens.
        positions_B: of the token in its response, from 0; int64, on the CPU.

    Raises:
        RunFailed: a logit is not a number, or infinite.
    """
    logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
    scaled_BV = logits_BV / sampling.temperature
    logprobs_BV = torch.log_softmax(scaled_BV, dim=-1)
    is_early_B = positions_B < sampling.min_new_tokens
    if sampling.greedy:
        tokens_B = ban(logits_BV, sampling.end_tokens, is_early_B).argmax(dim=-1)
        sampling_logprobs_B = torch.zeros_like(logprobs_BV[:, 0])
    else:
        kept_BV = keep_most_likely(
            ban(scaled_BV, sampling.end_tokens, is_early_B), sampling.top_k, sampling.top_p
        )
        sampled_BV = logprobs_BV if kept_BV is scaled_BV else torch.log_softmax(kept_BV, dim=-1)
        tokens_B = invert_cdf(sampled_BV.double().exp(), uniforms_B)
        sampling_logprobs_B = _pick(sampled_BV, tokens_B)
    logprobs_B = _pick(logprobs_BV, tokens_B)
    if not bool(torch.isfinite(logprobs_B).all()):
        raise RunFailed(
            "The actor's logits are not finite.",
            "Every logit must be a number.",
            "Lower training.learning_rate, or go back to an earlier checkpoint.",
        )
    return DrawnTokens(tokens_B, logprobs_B, sampling_logprobs_B)


def ban(logits_BV: Tensor, tokens: tuple[int, ...], is_banned_B: Tensor) -> Tensor:
    """Returns the logits with those of `tokens` at minus infinity where `is_banned_B` says so.

    Args:
        logits_BV: are not changed.
        tokens: to ban.
        is_banned_B: bool, on the CPU.
    """
    if not tokens or not bool(is_banned_B.any()):
        return logits_BV
    is_banned_BV = torch.zeros(logits_BV.shape, dtype=torch.bool)
    is_banned_BV[:, list(tokens)] = is_banned_B[:, None]
    return logits_BV.masked_fill(is_banned_BV.to(logits_BV.device), -torch.inf)


def keep_most_likely(logits_BV: Tensor, top_k: int, top_p: float) -> Tensor:
    """Returns the logits with minus infinity outside the top-k, then outside the top-p set.

    `top_p` counts the probability left after `top_k`. At least one token is kept.
    """
    if 0 < top_k < logits_BV.shape[-1]:
        threshold_B1 = logits_BV.topk(top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < threshold_B1, -torch.inf)
    if top_p < 1:
        sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
        probabilities_BV = sorted_BV.double().softmax(dim=-1)
        before_BV = probabilities_BV.cumsum(dim=-1) - probabilities_BV
        # A token leaves when the more likely ones alone hold the probability asked for.
        leaves_BV = torch.empty_like(before_BV, dtype=torch.bool)
        leaves_BV.scatter_(-1, order_BV, before_BV >= top_p)
        logits_BV = logits_BV.masked_fill(leaves_BV, -torch.inf)
    return logits_BV


def invert_cdf(probabilities_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """Returns the first token whose cumulative probability, in order of ids, reaches the uniform.

    Args:
        probabilities_BV: float64; need not add up to exactly 1. Tokens of probability zero are
            never returned.
        uniforms_B: float64 in (0, 1).
    """
    cumulative_BV = probabilities_BV.cumsum(dim=-1)
    targets_B1 = cumulative_BV[:, -1:] * uniforms_B[:, None]
    tokens_B = torch.searchsorted(cumulative_BV, targets_B1).squeeze(-1)
    return tokens_B.clamp_(max=probabilities_BV.shape[-1] - 1)  # beyond only if not a number


def _pick(values_BV: Tensor, tokens_B: Tensor) -> Tensor:
    return values_BV.gather(-1, tokens_B[:, None]).squeeze(-1)
