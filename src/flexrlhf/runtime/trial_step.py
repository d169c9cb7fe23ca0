"""The dry step on the longest batch that finds how many tokens a micro-batch may hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flexrlhf.learning.data.experience import Batch
from flexrlhf.learning.training.micro_batch import find_micro_batch_tokens
from flexrlhf.learning.training.objectives import GlobalCounts
from flexrlhf.learning.training.step import RoleTrainer


def measured_micro_batch_tokens(
    trainers: Sequence[RoleTrainer], *, longest: int, rows_per_item: int, num_items: int
) -> int:
    """Returns the largest token budget whose step fits in memory for every trained role.

    Args:
        trainers: the trained roles.
        longest: tokens of the longest item, all its rows together.
        rows_per_item: 2 for preference pairs, else 1.
        num_items: items of a mini-batch.
    """
    moments = sum(trainer.backend.optimizer_bytes() for trainer in trainers)
    return min(
        find_micro_batch_tokens(
            lambda count, trainer=trainer: _dry_step(
                trainer, count * rows_per_item, longest // rows_per_item
            ),
            longest=longest,
            num_samples=num_items,
            reserved_bytes=moments,
            device=trainer.backend.device,
        )
        for trainer in trainers
    )


def _dry_step(trainer: RoleTrainer, num_rows: int, length: int) -> None:
    """Runs forward and backward on rows of zeros and forgets the gradient, even half of one."""
    device = trainer.backend.device
    mask_BT = torch.ones(num_rows, length, dtype=torch.bool, device=device)
    mask_BT[:, 0] = False
    batch = Batch(
        tokens=torch.zeros(num_rows, length, dtype=torch.long, device=device),
        lengths=torch.full((num_rows,), length, device=device),
        mask=mask_BT,
        fields={
            name: torch.zeros(num_rows, length, device=device) for name in trainer.objective.fields
        },
    )
    counts = GlobalCounts(int(mask_BT.sum()), num_rows, length)
    try:
        with trainer.backend.autocast():
            part = trainer.objective(trainer.backend.model, batch, counts)
        trainer.backend.backward(part.loss)
    finally:
        trainer.backend.discard_gradient()
