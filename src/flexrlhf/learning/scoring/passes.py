"""Forward passes over samples without gradients, in chunks cut by a token budget.

Samples of like length share a chunk. Results come in the order of the samples, on the CPU, and do
not depend on how the chunks were cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from flexrlhf.learning.data.experience import Batch, Sample, collate, pack_by_tokens
from flexrlhf.learning.models.forward import (
    sequence_scores,
    shared_outputs,
    token_logprobs,
    token_values,
)


def score_logprobs(
    model: nn.Module, samples: Sequence[Sample], *, temperature: float, max_tokens: int
) -> list[Tensor]:
    """Returns log p(token_t | tokens_<t) of each sample as [T], zero outside its mask.

    Args:
        model: the actor or the reference.
        samples: any number, of any lengths.
        temperature: divides the logits, as the sampler did.
        max_tokens: tokens of a chunk, padding included.

    Raises:
        DataError: one sample alone is longer than `max_tokens`.
    """
    return _per_token(
        model,
        samples,
        max_tokens,
        lambda batch: token_logprobs(model, batch, temperature=temperature).logprobs,
    )


def score_values(scorer: nn.Module, samples: Sequence[Sample], *, max_tokens: int) -> list[Tensor]:
    """Returns V(state before token t) of each sample as [T], zero outside its mask.

    Raises:
        DataError: one sample alone is longer than `max_tokens`.
    """
    return _per_token(scorer, samples, max_tokens, lambda batch: token_values(scorer, batch))


def score_shared(
    model: nn.Module, samples: Sequence[Sample], *, temperature: float, max_tokens: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns `score_logprobs` and `score_values` of a shared actor-critic from one pass.

    Raises:
        DataError: one sample alone is longer than `max_tokens`.
    """

    def forward(batch: Batch) -> Tensor:
        outputs = shared_outputs(model, batch, temperature=temperature)
        return torch.stack((outputs.logprobs, outputs.values), dim=-1)

    both = _per_token(model, samples, max_tokens, forward)
    logprobs, values = ([pair_T2[:, i].contiguous() for pair_T2 in both] for i in range(2))
    return logprobs, values


@torch.no_grad()
def score_rewards(scorer: nn.Module, samples: Sequence[Sample], *, max_tokens: int) -> list[float]:
    """Returns the reward model's score at the last token of each sample.

    Raises:
        DataError: one sample alone is longer than `max_tokens`.
    """
    scores = [0.0] * len(samples)
    for positions, batch in _chunks(scorer, samples, max_tokens):
        for position, score in zip(positions, sequence_scores(scorer, batch).tolist(), strict=True):
            scores[position] = score
    return scores


@torch.no_grad()
def _per_token(
    model: nn.Module,
    samples: Sequence[Sample],
    max_tokens: int,
    forward: Callable[[Batch], Tensor],
) -> list[Tensor]:
    """Runs `forward`, which returns [B, T, ...], and cuts its rows to their samples' lengths."""
    results: dict[int, Tensor] = {}
    for positions, batch in _chunks(model, samples, max_tokens):
        output_BT = forward(batch).cpu()
        for row_T, position in zip(output_BT, positions, strict=True):
            # A copy, or else each row would keep the whole chunk alive.
            results[position] = row_T[: samples[position].num_tokens].clone()
    return [results[position] for position in range(len(samples))]


def _chunks(
    model: nn.Module, samples: Sequence[Sample], max_tokens: int
) -> Iterator[tuple[list[int], Batch]]:
    """Yields positions in `samples` and their batch, on the model's device."""
    device = next(model.parameters()).device
    lengths = [sample.num_tokens for sample in samples]
    for positions in pack_by_tokens(lengths, max_tokens=max_tokens):
        yield positions, collate([samples[position] for position in positions]).to(device)
