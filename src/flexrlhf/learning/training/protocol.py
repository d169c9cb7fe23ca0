"""The port between a role's losses and the devices that train it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one optimiser step did."""

    grad_norm: float
    """L2 norm over all parameters before clipping."""
    learning_rate: float
    """The rate that this step used."""


class TrainBackend(Protocol):
    """Holds one role's trained weights and optimiser, on whatever devices it was given."""

    model: nn.Module

    @property
    def device(self) -> torch.device:
        """Where batches must lie."""
        ...

    def autocast(self) -> AbstractContextManager[Any]:
        """Returns the context that forward passes of this role run in."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of `loss`; losses are already divided by global counts."""
        ...

    def step(self) -> StepReport:
        """Clips the gradient, updates the weights, advances the schedule, clears the gradient."""
        ...

    def save_shard(self, folder: Path) -> None:
        """Writes weights, optimiser and step count into `folder`."""
        ...

    def load_shard(self, folder: Path) -> None:
        """Restores what `save_shard` wrote, bit for bit."""
        ...

    def discard_gradient(self) -> None:
        """Forgets what `backward` added since the last step."""
        ...

    def weight_bytes(self) -> int:
        """Returns the bytes of the weights."""
        ...

    def optimizer_bytes(self) -> int:
        """Returns the bytes of the optimiser state once it has taken a step."""
        ...
