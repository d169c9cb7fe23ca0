"""Log-probabilities of given tokens, without the logits of a whole batch in memory."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from flexrlhf.core.errors import ConfigError, ShapeError


def selected_logprobs(
    hidden_ND: Tensor,
    head_weight_VD: Tensor,
    targets_N: Tensor,
    *,
    head_bias_V: Tensor | None = None,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Applies the language-model head and returns log p(target) at each position.

        p = softmax((W h + b) / temperature),   entropy = -sum_v p_v log p_v

    Works on `chunk_tokens` positions at a time and computes each chunk but the last anew in the
    backward pass, which begins with the last: besides inputs, results and gradients, only a few
    [chunk_tokens, V] tensors are ever alive. The product with the head is in the type of the
    inputs; the softmax is in float32, or float64 for such inputs.

    Args:
        hidden_ND: last hidden state of each position.
        head_weight_VD: weight of the head.
        targets_N: int64, the token that each position is to predict.
        head_bias_V: bias of the head, if it has one.
        temperature: divides the logits; above 0, the one that the tokens were sampled with.
        chunk_tokens: positions at a time, at least 1.
        with_entropy: whether to return the entropy of each distribution as well.

    Returns:
        logprobs_N, and entropy_N or None; both in nats, float32 or float64.

    Raises:
        ShapeError: shapes do not fit together.
        ConfigError: `temperature` or `chunk_tokens` is out of its range.

    Source: ours.
    """
    _check_shapes(hidden_ND, head_weight_VD, targets_N, head_bias_V)
    if not temperature > 0 or chunk_tokens < 1:
        raise ConfigError(
            f"temperature = {temperature}, chunk_tokens = {chunk_tokens}.",
            "The temperature is above 0, a chunk at least 1 token.",
            "For greedy sampling, take the log-probabilities at temperature 1.",
        )
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    # `split` has one backward for all chunks; slices would each fill a gradient of full size.
    hidden_chunks = torch.split(hidden_ND, chunk_tokens)
    targets_chunks = torch.split(targets_N, chunk_tokens)
    for place, (hidden_CD, targets_C) in enumerate(zip(hidden_chunks, targets_chunks, strict=True)):
        is_last = place == len(hidden_chunks) - 1
        logprobs_C, entropy_C = (_chunk_logprobs if is_last else _chunk_logprobs_anew)(
            hidden_CD,
            head_weight_VD,
            targets_C,
            head_bias_V=head_bias_V,
            temperature=temperature,
            with_entropy=with_entropy,
        )
        logprobs.append(logprobs_C)
        if entropy_C is not None:
            entropies.append(entropy_C)
    return torch.cat(logprobs), torch.cat(entropies) if with_entropy else None


def _chunk_logprobs_anew(*tensors: Tensor, **keys: Any) -> tuple[Tensor, Tensor | None]:
    """The same, of which nothing is kept for the backward pass but the inputs."""
    results = checkpoint(  # pyright: ignore[reportUnknownVariableType]
        _chunk_logprobs, *tensors, use_reentrant=False, preserve_rng_state=False, **keys
    )
    return cast("tuple[Tensor, Tensor | None]", results)


def _chunk_logprobs(
    hidden_CD: Tensor,
    head_weight_VD: Tensor,
    targets_C: Tensor,
    *,
    head_bias_V: Tensor | None,
    temperature: float,
    with_entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    logits_CV = functional.linear(hidden_CD, head_weight_VD, head_bias_V)
    dtype = torch.promote_types(logits_CV.dtype, torch.float32)
    logprobs_CV = functional.log_softmax(logits_CV.to(dtype) / temperature, dim=-1)
    logprobs_C = logprobs_CV.gather(-1, targets_C[:, None]).squeeze(-1)
    if not with_entropy:
        return logprobs_C, None
    return logprobs_C, -(logprobs_CV.exp() * logprobs_CV).sum(dim=-1)


def _check_shapes(
    hidden_ND: Tensor, head_weight_VD: Tensor, targets_N: Tensor, head_bias_V: Tensor | None
) -> None:
    fits = (
        hidden_ND.ndim == head_weight_VD.ndim == 2
        and hidden_ND.shape[1] == head_weight_VD.shape[1]
        and targets_N.shape == hidden_ND.shape[:1]
        and (head_bias_V is None or head_bias_V.shape == head_weight_VD.shape[:1])
    )
    if not fits:
        bias = "" if head_bias_V is None else f", head_bias_V is {list(head_bias_V.shape)}"
        raise ShapeError(
            f"hidden_ND is {list(hidden_ND.shape)}, head_weight_VD is "
            f"{list(head_weight_VD.shape)}, targets_N is {list(targets_N.shape)}{bias}.",
            "N positions, D wide, and V words of the vocabulary agree between them.",
            "Flatten batch and time into N, and take head and hidden states from one model.",
        )
