"""From logits to tokens: temperature, top-k, top-p, and one uniform number per token.

Ties: greedy takes the lowest id; top-k keeps every token as likely as the k-th; top-p takes equally
likely tokens in order of their ids. A row's token depends on no other row: every sum is of one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from flexrlhf.core.errors import RunFailed
from flexrlhf.learning.rollout.protocol import Sampling

_CHUNK: Final = 256
"""Tokens whose probabilities are added up first, so that few numbers are cumulated in float64."""
_FEW_TOKENS: Final = 2048
"""A vocabulary of so many is cumulated as a whole: one step costs less than two."""


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
    scaled_BV = logits_BV if sampling.temperature == 1 else logits_BV / sampling.temperature
    probabilities_BV = scaled_BV.softmax(dim=-1)
    is_early_B = positions_B < sampling.min_new_tokens
    if sampling.greedy:
        tokens_B = ban(logits_BV, sampling.end_tokens, is_early_B).argmax(dim=-1)
        logprobs_B = _logprobs(scaled_BV, probabilities_BV, tokens_B)
        sampling_logprobs_B = torch.zeros_like(logprobs_B)
    else:
        kept_BV = keep_most_likely(
            ban(scaled_BV, sampling.end_tokens, is_early_B), sampling.top_k, sampling.top_p
        )
        are_all_kept = kept_BV is scaled_BV
        sampled_BV = probabilities_BV if are_all_kept else kept_BV.softmax(dim=-1)
        tokens_B = invert_cdf(sampled_BV, uniforms_B)
        logprobs_B = _logprobs(scaled_BV, probabilities_BV, tokens_B)
        sampling_logprobs_B = (
            logprobs_B if are_all_kept else _logprobs(kept_BV, sampled_BV, tokens_B)
        )
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

    Chunks of the vocabulary are added up in the type of the probabilities, and cumulated in
    float64; then the tokens of the one chunk that the uniform falls into are.

    Args:
        probabilities_BV: float32 or float64; need not add up to exactly 1. Tokens of probability
            zero are never returned.
        uniforms_B: float64 in (0, 1).
    """
    num_tokens = probabilities_BV.shape[-1]
    if num_tokens <= _FEW_TOKENS:
        return _descend(probabilities_BV, uniforms_B)[0]
    chunks_B, uniforms_B = _descend(_chunk_sums(probabilities_BV), uniforms_B)
    tokens_BK = chunks_B[:, None] * _CHUNK + torch.arange(_CHUNK, device=chunks_B.device)
    inside_BK = probabilities_BV.gather(-1, tokens_BK.clamp(max=num_tokens - 1))
    inside_BK = inside_BK.masked_fill(tokens_BK >= num_tokens, 0)
    return chunks_B * _CHUNK + _descend(inside_BK, uniforms_B)[0]


def _chunk_sums(probabilities_BV: Tensor) -> Tensor:
    """Returns the sum of each chunk, [B, chunks]; the last one may be shorter."""
    num_whole = probabilities_BV.shape[-1] // _CHUNK * _CHUNK
    sums_BC = probabilities_BV[:, :num_whole].unflatten(-1, (-1, _CHUNK)).sum(dim=-1)
    if num_whole == probabilities_BV.shape[-1]:
        return sums_BC
    return torch.cat([sums_BC, probabilities_BV[:, num_whole:].sum(dim=-1, keepdim=True)], dim=-1)


def _descend(masses_BN: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """Returns into which of the masses each uniform falls, and how far inside it: in (0, 1]."""
    cumulative_BN = masses_BN.double().cumsum(dim=-1)
    targets_B1 = cumulative_BN[:, -1:] * uniforms_B[:, None]
    # Beyond the last only if not a number.
    found_B1 = torch.searchsorted(cumulative_BN, targets_B1).clamp_(max=masses_BN.shape[-1] - 1)
    ends_B1 = cumulative_BN.gather(-1, found_B1)
    starts_B1 = cumulative_BN.gather(-1, (found_B1 - 1).clamp_(min=0)) * (found_B1 > 0)
    inside_B1 = (targets_B1 - starts_B1) / (ends_B1 - starts_B1)
    return found_B1.squeeze(-1), inside_B1.squeeze(-1)


def _logprobs(scaled_BV: Tensor, probabilities_BV: Tensor, tokens_B: Tensor) -> Tensor:
    """Returns the log-softmax of the tokens only, [B], given the softmax of all.

    The most likely token's probability is 1 / sum exp(logit - largest logit), so its log is what
    the normaliser takes off; logs of small probabilities, which may be zero, are not needed.
    """
    picked_B = scaled_BV.gather(-1, tokens_B[:, None]).squeeze(-1)
    return picked_B - scaled_BV.amax(dim=-1) + probabilities_BV.amax(dim=-1).log()
