"""A batch for replicas that have nothing to do in a pass that all replicas make together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flexrlhf.learning.data.experience import Batch


def idle_batch(fields: Sequence[str] = ()) -> Batch:
    """Returns two shortest sequences of token 0, one trainable token each, all fields zero.

    Two, since the rows of a preference batch come in pairs. Whoever runs it forgets the result.
    """
    mask_BT = torch.tensor([[False, True], [False, True]])
    return Batch(
        tokens=torch.zeros(2, 2, dtype=torch.long),
        lengths=torch.tensor([2, 2]),
        mask=mask_BT,
        fields={name: torch.zeros(2, 2) for name in fields},
    )
