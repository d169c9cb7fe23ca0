"""Compares what the engine said of its tokens with what the trainer says."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from flexrlhf.core.errors import ShapeError


def logprob_gap(engine_logprobs: Iterable[Tensor], trainer_logprobs: Iterable[Tensor]) -> float:
    """Returns the largest |difference|, nats; nan when either side has one.

    Args:
        engine_logprobs: `fields["logprobs"]` of each sample, zero at prompt tokens.
        trainer_logprobs: of the same samples at the same temperature, aligned and zero likewise.

    Raises:
        ShapeError: the two differ in number or shape.
    """
    engine, trainer = list(engine_logprobs), list(trainer_logprobs)
    shapes = [[tuple(tensor.shape) for tensor in side] for side in (engine, trainer)]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"Log-probs of shapes {shapes[0]} are compared with {shapes[1]}.",
            "Both must belong to the same samples.",
            "Score the samples that the engine returned, in their order.",
        )
    if not engine:
        return 0.0
    pairs = zip(engine, trainer, strict=True)
    gaps = [(ours.double().cpu() - theirs.double().cpu()).abs().max() for ours, theirs in pairs]
    return float(torch.stack(gaps).max())
