"""From logits to tokens: temperature, top-k, top-p, and one uniform number per token.

Ties: greedy takes the lowest id; top-k keeps every token as likely as the k-th; top-p takes equally
likely tokens in order of their ids. A row's token depends on no other row: every sum is of one row.
"""

from __future__ import annotations

import math
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
    is_early_B = _early(sampling, positions_B)
    if sampling.greedy:
        drawn = _draw_greedily(logits_BV, scaled_BV, sampling, is_early_B)
    elif sampling.filters:
        drawn = _draw_filtered(scaled_BV, uniforms_B, sampling, is_early_B)
    else:
        drawn = _draw(scaled_BV, uniforms_B, sampling, is_early_B)
    # A sum, which is one operation, is finite only if all are.
    if not math.isfinite(drawn.logprobs.sum().item()):
        raise RunFailed(
            "The actor's logits are not finite.",
            "Every logit must be a number.",
            "Lower training.learning_rate, or go back to an earlier checkpoint.",
        )
    return drawn


def _early(sampling: Sampling, positions_B: Tensor) -> Tensor | None:
    """Says which rows may not end yet, bool [B] on the CPU; None where all may."""
    if not sampling.end_tokens or not sampling.min_new_tokens:
        return None
    is_early_B = positions_B < sampling.min_new_tokens
    return is_early_B if bool(is_early_B.any()) else None


def _draw(
    scaled_BV: Tensor, uniforms_B: Tensor, sampling: Sampling, is_early_B: Tensor | None
) -> DrawnTokens:
    """Draws from all tokens but those that would end an answer too early."""
    kept_BV = _without_ends(scaled_BV, sampling, is_early_B)
    sampled_BV = kept_BV.softmax(dim=-1)
    tokens_B = invert_cdf(sampled_BV, uniforms_B)
    places_B1 = tokens_B[:, None]
    # A token that was drawn is not so unlikely that the log of its probability were inexact.
    sampling_logprobs_B1 = sampled_BV.gather(-1, places_B1).log_()
    if is_early_B is None:
        logprobs_B = sampling_logprobs_B1.squeeze(-1)
        return DrawnTokens(tokens_B, logprobs_B, logprobs_B)
    picked_B1 = kept_BV.gather(-1, places_B1)
    normaliser_B1 = picked_B1 - sampling_logprobs_B1
    left_out_B1 = torch.where(is_early_B, 0.0, -torch.inf)[:, None].to(scaled_BV.device)
    for end in set(sampling.end_tokens):
        normaliser_B1 = normaliser_B1.logaddexp(scaled_BV[:, end : end + 1] + left_out_B1)
    logprobs_B1 = picked_B1 - normaliser_B1
    return DrawnTokens(tokens_B, logprobs_B1.squeeze(-1), sampling_logprobs_B1.squeeze(-1))


def _draw_filtered(
    scaled_BV: Tensor, uniforms_B: Tensor, sampling: Sampling, is_early_B: Tensor | None
) -> DrawnTokens:
    """Draws from what top-k and top-p leave."""
    kept_BV = _without_ends(scaled_BV, sampling, is_early_B)
    kept_BV = keep_most_likely(kept_BV, sampling.top_k, sampling.top_p)
    sampled_BV = kept_BV.softmax(dim=-1)
    tokens_B = invert_cdf(sampled_BV, uniforms_B)
    logprobs_B = _logprobs(scaled_BV, scaled_BV.softmax(dim=-1), tokens_B)
    return DrawnTokens(tokens_B, logprobs_B, _logprobs(kept_BV, sampled_BV, tokens_B))


def _draw_greedily(
    logits_BV: Tensor, scaled_BV: Tensor, sampling: Sampling, is_early_B: Tensor | None
) -> DrawnTokens:
    """Takes the most likely token."""
    tokens_B = _without_ends(logits_BV, sampling, is_early_B).argmax(dim=-1)
    logprobs_B = _logprobs(scaled_BV, scaled_BV.softmax(dim=-1), tokens_B)
    return DrawnTokens(tokens_B, logprobs_B, torch.zeros_like(logprobs_B))


def _without_ends(logits_BV: Tensor, sampling: Sampling, is_early_B: Tensor | None) -> Tensor:
    """Returns the logits with those of end tokens at minus infinity in early rows."""
    if is_early_B is None:
        return logits_BV
    banned_BV, is_early_B = logits_BV.clone(), is_early_B.to(logits_BV.device)
    for end in sampling.end_tokens:
        banned_BV[:, end].masked_fill_(is_early_B, -torch.inf)
    return banned_BV


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
        return _find(probabilities_BV, uniforms_B)[0].squeeze(-1)
    chunks_B, uniforms_B = _descend(_chunk_sums(probabilities_BV), uniforms_B)
    tokens_BK = chunks_B[:, None] * _CHUNK + torch.arange(_CHUNK, device=chunks_B.device)
    inside_BK = probabilities_BV.gather(-1, tokens_BK.clamp(max=num_tokens - 1))
    inside_BK = inside_BK.masked_fill(tokens_BK >= num_tokens, 0)
    return chunks_B * _CHUNK + _find(inside_BK, uniforms_B)[0].squeeze(-1)


def _chunk_sums(probabilities_BV: Tensor) -> Tensor:
    """Returns the sum of each chunk, [B, chunks]; the last one may be shorter."""
    num_whole = probabilities_BV.shape[-1] // _CHUNK * _CHUNK
    sums_BC = probabilities_BV[:, :num_whole].unflatten(-1, (-1, _CHUNK)).sum(dim=-1)
    if num_whole == probabilities_BV.shape[-1]:
        return sums_BC
    return torch.cat([sums_BC, probabilities_BV[:, num_whole:].sum(dim=-1, keepdim=True)], dim=-1)


def _find(masses_BN: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns into which of the masses each uniform falls.

    Returns:
        The mass, [B, 1], where the uniform lies in their sum, [B, 1], and their sums, [B, N].
    """
    cumulative_BN = masses_BN.double().cumsum(dim=-1)
    targets_B1 = cumulative_BN[:, -1:] * uniforms_B[:, None]
    # Beyond the last only if not a number.
    found_B1 = torch.searchsorted(cumulative_BN, targets_B1).clamp_(max=masses_BN.shape[-1] - 1)
    return found_B1, targets_B1, cumulative_BN


def _descend(masses_BN: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """Returns into which of the masses each uniform falls, and how far inside it: in (0, 1]."""
    found_B1, targets_B1, cumulative_BN = _find(masses_BN, uniforms_B)
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
