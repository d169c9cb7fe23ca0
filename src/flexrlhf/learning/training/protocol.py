"""The port between a role's losses and the devices that train it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from flexrlhf.learning.models.pipeline import Pipeline

T = TypeVar("T")


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
    def replica(self) -> int:
        """Which replica of the role this process is a part of."""
        ...

    @property
    def num_replicas(self) -> int:
        """Replicas among which the micro-batches of a step are divided."""
        ...

    @property
    def needs_lockstep(self) -> bool:
        """Whether every replica must make the same number of passes, with or without samples."""
        ...

    @property
    def pipeline(self) -> Pipeline | None:
        """Takes several micro-batches together through the stages of the model, if it has any."""
        ...

    @property
    def device(self) -> torch.device:
        """Where batches must lie."""
        ...

    def autocast(self) -> AbstractContextManager[Any]:
        """Returns the context that forward passes of this role run in."""
        ...

    def forward(self, call: Callable[[nn.Module], T]) -> T:
        """Returns what `call` makes of the model; the only way to run a pass without a pipeline.

        Tensors with a gradient in the result may lie in tuples, lists, mappings and dataclasses.
        """
        ...

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of `loss`; losses are already divided by global counts."""
        ...

    def step(self) -> StepReport:
        """Clips the gradient, updates the weights, advances the schedule, clears the gradient.

        The gradient is the sum over the replicas, which all call this together.
        """
        ...

    def gather(self, document: Any) -> list[Any]:
        """Returns one small JSON document of every replica, in their order; all call this."""
        ...

    def agree_max(self, number: int) -> int:
        """Returns the largest number among the replicas that go in lockstep; they all call this.

        Of passes, before the first one: a pass is a collective too.
        """
        ...

    def save_shard(self, folder: Path) -> None:
        """Writes what this process keeps of weights, optimiser and step count into `folder`.

        All processes of a role write into one folder; what several hold one of them writes.
        """
        ...

    def load_shard(self, folder: Path) -> None:
        """Restores what the processes of the role wrote with `save_shard`, bit for bit."""
        ...

    def discard_gradient(self) -> None:
        """Forgets what `backward` added since the last step, and a pass that broke off.

        All processes of the role call it.
        """
        ...

    def weight_bytes(self) -> int:
        """Returns the bytes of the weights that this process keeps between steps."""
        ...

    def optimizer_bytes(self) -> int:
        """Returns the bytes of the optimiser state here once it has taken a step."""
        ...
