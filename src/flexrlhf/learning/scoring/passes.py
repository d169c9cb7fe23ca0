"""Forward passes over given sequences without gradients, in chunks cut by a token budget.

Samples of like length share a chunk. Results come in the order of the samples, on the CPU, and do
not depend on how the chunks were cut. Replicas of a model that go in lockstep each give their own
samples, possibly none, and make as many passes as the one with most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from flexrlhf.learning.data.experience import Batch, TokenSequence, collate, pack_by_tokens
from flexrlhf.learning.data.idle_batch import idle_batch
from flexrlhf.learning.models.forward import (
    sequence_scores,
    shared_outputs,
    token_logprobs,
    token_values,
)
from flexrlhf.learning.models.parallelise import ParallelModel
from flexrlhf.learning.models.pipeline import StagePass

_Pass = Callable[[nn.Module, Batch], Tensor]


def score_logprobs(
    model: nn.Module | ParallelModel,
    samples: Sequence[TokenSequence],
    *,
    temperature: float,
    max_tokens: int,
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
        lambda module, batch: token_logprobs(module, batch, temperature=temperature).logprobs,
    )


def score_values(
    scorer: nn.Module | ParallelModel, samples: Sequence[TokenSequence], *, max_tokens: int
) -> list[Tensor]:
    """Returns V(state before token t) of each sample as [T], zero outside its mask.

    Raises:
        DataError: one sample alone is longer than `max_tokens`.
    """
    return _per_token(scorer, samples, max_tokens, token_values)


def score_shared(
    model: nn.Module | ParallelModel,
    samples: Sequence[TokenSequence],
    *,
    temperature: float,
    max_tokens: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns `score_logprobs` and `score_values` of a shared actor-critic from one pass.

    Raises:
        DataError: one sample alone is longer than `max_tokens`.
    """

    def forward(module: nn.Module, batch: Batch) -> Tensor:
        outputs = shared_outputs(module, batch, temperature=temperature)
        return torch.stack((outputs.logprobs, outputs.values), dim=-1)

    both = _per_token(model, samples, max_tokens, forward)
    logprobs, values = ([pair_T2[:, i].contiguous() for pair_T2 in both] for i in range(2))
    return logprobs, values


def score_rewards(
    scorer: nn.Module | ParallelModel, samples: Sequence[TokenSequence], *, max_tokens: int
) -> list[float]:
    """Returns the reward model's score at the last token of each sample.

    Raises:
        DataError: one sample alone is longer than `max_tokens`.
    """
    scores = [0.0] * len(samples)
    for positions, scores_B in _passes(scorer, samples, max_tokens, sequence_scores):
        for position, score in zip(positions, scores_B.tolist(), strict=True):
            scores[position] = score
    return scores


def _per_token(
    model: nn.Module | ParallelModel,
    samples: Sequence[TokenSequence],
    max_tokens: int,
    forward: _Pass,
) -> list[Tensor]:
    """Runs `forward`, which returns [B, T, ...], and cuts its rows to their samples' lengths."""
    results: dict[int, Tensor] = {}
    for positions, output_BT in _passes(model, samples, max_tokens, forward):
        for row_T, position in zip(output_BT, positions, strict=True):
            # A copy, or else each row would keep the whole chunk alive.
            results[position] = row_T[: samples[position].num_tokens].clone()
    return [results[position] for position in range(len(samples))]


def _passes(
    model: nn.Module | ParallelModel,
    samples: Sequence[TokenSequence],
    max_tokens: int,
    forward: _Pass,
) -> Iterator[tuple[list[int], Tensor]]:
    """Yields positions in `samples` and what a pass over them gave, on the CPU."""
    parallel = model if isinstance(model, ParallelModel) else ParallelModel(model)
    bins = pack_by_tokens([sample.num_tokens for sample in samples], max_tokens=max_tokens)
    num_passes = parallel.agree_max(len(bins))  # before the first, for passes are collectives too
    batches = (collate([samples[position] for position in positions]) for positions in bins)
    outputs = _outputs(parallel, batches, forward)
    for positions, output in zip(bins, outputs, strict=True):
        yield positions, output.cpu()
    for _ in range(num_passes - len(bins)):
        _run(parallel, idle_batch(), forward)


def _outputs(parallel: ParallelModel, batches: Iterable[Batch], forward: _Pass) -> Iterator[Tensor]:
    """Yields what passes over the batches give."""
    if parallel.pipeline is None:
        for batch in batches:
            yield _run(parallel, batch, forward)
        return
    passes = [
        StagePass(batch, lambda module, batch=batch: forward(module, batch))
        for batch in (batch.to(parallel.device) for batch in batches)
    ]
    yield from parallel.pipeline.results(passes)


@torch.no_grad()
def _run(parallel: ParallelModel, batch: Batch, forward: _Pass) -> Tensor:
    batch = batch.to(parallel.device)
    return parallel.run(lambda module: forward(module, batch))
