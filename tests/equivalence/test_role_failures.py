"""What goes wrong on one replica stops all of them with the same message, and none hangs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from process_pool import ProcessPool
from role_cases import (
    NUM_STEPS,
    OBJECTIVES,
    SETTINGS,
    SPLITS,
    alone,
    error_of,
    make_samples,
    split_trainer,
    train,
)

from flexrlhf.core.errors import RunFailed
from flexrlhf.learning.training.objectives import MicroBatchLoss


class SpoiltGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("nan")


class SpoiltObjective:
    """The value objective, whose gradient is not a number on sample 103."""

    fields = OBJECTIVES["scorer"].fields

    def __call__(self, model, batch, counts):
        part = OBJECTIVES["scorer"](model, batch, counts)
        spoilt = 103 in batch.sample_ids
        return MicroBatchLoss(SpoiltGradient.apply(part.loss) if spoilt else part.loss, part.sums)


def spoil_one_rank(degrees: dict[str, Any], *, spoilt: str) -> dict[str, Any] | None:
    """Makes the loss or the gradient of one replica infinite; returns what every rank says."""
    made = split_trainer("scorer", "llama", degrees)
    if made is None:
        return None
    trainer, parallel = made
    train(trainer, num_steps=1)
    before = {name: shard.tensor.clone() for name, shard in parallel.shards().items()}
    samples = make_samples()
    # Of the first step's mini-batch, replica 1 has samples 1, 3 and 5.
    if spoilt == "loss":
        samples[3].fields["returns"][-1] = float("nan")
    else:
        trainer.objective = SpoiltObjective()
    said = error_of(lambda: train(trainer, num_steps=1, samples=samples))
    trainer.objective = OBJECTIVES["scorer"]
    same = all(torch.equal(before[name], s.tensor) for name, s in parallel.shards().items())
    after = train(trainer, num_steps=1)  # the role works as before
    return {"said": said, "same": same, "after": after}


@pytest.mark.parametrize(
    ("split", "spoilt"),
    [
        ("zero0", "loss"),
        ("zero2", "loss"),
        ("tp2 x zero3", "loss"),
        ("zero1", "gradient"),
        ("zero3", "gradient"),
        ("pp2", "loss"),
        ("pp2 x zero1", "loss"),
        ("pp2 x zero1", "gradient"),
    ],
)
def test_what_is_not_finite_on_one_replica_stops_all_with_one_message(
    process_pool: ProcessPool, split: str, spoilt: str
):
    results = process_pool.run(spoil_one_rank, degrees=SPLITS[split], spoilt=spoilt)
    members = [result for result in results if result is not None]
    samples = "102, 103" if split == "pp2" else "101, 103"
    expected = {
        "loss": f"The loss of role actor is nan on samples {samples}.",
        "gradient": "The gradient norm is nan at optimiser step 1.",
    }
    for result in members:
        assert result["said"].startswith(expected[spoilt])
        assert result == members[0]
        assert result["same"]
        assert result["after"][0]["learning_rate"] == SETTINGS.learning_rate


class BrokenBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise RunFailed("no memory")


class BrokenObjective:
    """The value objective, which fails in its forward or its backward pass."""

    fields = OBJECTIVES["scorer"].fields

    def __init__(self, where: str) -> None:
        self._where = where

    def __call__(self, model, batch, counts):
        part = OBJECTIVES["scorer"](model, batch, counts)
        if self._where == "forward":
            raise RunFailed("no memory")
        # Between the head, whose weights the root holds, and the layers.
        return MicroBatchLoss(part.loss + 0.0 * BrokenBackward.apply(part.loss), part.sums)


def break_a_pass(degrees: dict[str, Any], *, where: str) -> list[dict[str, float]] | None:
    """Breaks a pass on every rank, forgets it, and trains as if nothing had been."""
    made = split_trainer("scorer", "llama", degrees)
    if made is None:
        return None
    trainer, _ = made
    trainer.objective = BrokenObjective(where)
    said = error_of(lambda: train(trainer, num_steps=1))
    assert "no memory" in said, said
    trainer.backend.discard_gradient()
    trainer.objective = OBJECTIVES["scorer"]
    return train(trainer, num_steps=NUM_STEPS)


@pytest.mark.parametrize(
    ("split", "where"), [("zero2", "backward"), ("zero3", "forward"), ("zero3", "backward")]
)
def test_a_pass_that_broke_is_forgotten(process_pool: ProcessPool, split: str, where: str):
    metrics, _ = alone("scorer", "llama")
    results = process_pool.run(break_a_pass, degrees=SPLITS[split], where=where)
    for ours, theirs in zip(results[0], metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)
