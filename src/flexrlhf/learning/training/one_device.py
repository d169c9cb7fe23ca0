"""Training of one role on one device."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flexrlhf.learning.training.optimizer import (
    OptimizerSettings,
    build_optimizer,
    gradient_not_finite,
    set_learning_rate,
)
from flexrlhf.learning.training.precision import autocast
from flexrlhf.learning.training.protocol import StepReport
from flexrlhf.learning.training.shard import (
    load_optimizer,
    load_weights,
    save_optimizer,
    save_weights,
)

T = TypeVar("T")


class OneDeviceBackend:
    """Keeps float32 (or float64) weights and an AdamW state on the model's device.

    Args:
        model: the module to train; its parameters are updated in place.
        settings: optimiser and schedule.
        precision: `bfloat16` runs forward passes under autocast over float32 weights.
    """

    def __init__(
        self, model: nn.Module, settings: OptimizerSettings, *, precision: str = "float32"
    ) -> None:
        self.model = model
        self._settings = settings
        self._precision = precision
        self._optimizer = build_optimizer(model.parameters(), settings)
        self._step = 0

    @property
    def replica(self) -> int:
        """The only one."""
        return 0

    @property
    def num_replicas(self) -> int:
        """One."""
        return 1

    @property
    def needs_lockstep(self) -> bool:
        """There is nobody to keep step with."""
        return False

    @property
    def pipeline(self) -> None:
        """The model is in one piece."""
        return None

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        return next(self.model.parameters()).device

    def autocast(self) -> AbstractContextManager[Any]:
        """Returns the context that forward passes of this role run in."""
        return autocast(self.device.type, self._precision)

    def forward(self, call: Callable[[nn.Module], T]) -> T:
        """Returns what `call` makes of the model."""
        return call(self.model)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of `loss`."""
        loss.backward()

    def gather(self, document: Any) -> list[Any]:
        """Returns the only replica's document."""
        return [document]

    def agree_max(self, number: int) -> int:
        """Returns the only replica's number."""
        return number

    def step(self) -> StepReport:
        """Clips the gradient, updates the weights, advances the schedule, clears the gradient.

        Raises:
            RunFailed: the gradient is not finite; the weights are left as they were.
        """
        limit = math.inf if self._settings.max_grad_norm is None else self._settings.max_grad_norm
        grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        if not math.isfinite(grad_norm):
            self._optimizer.zero_grad(set_to_none=True)
            raise gradient_not_finite(grad_norm, self._step)
        rate = set_learning_rate(self._optimizer, self._step, self._settings)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._step += 1
        return StepReport(grad_norm, rate)

    def discard_gradient(self) -> None:
        """Forgets what `backward` added since the last step."""
        self._optimizer.zero_grad(set_to_none=True)

    def save_shard(self, folder: Path) -> None:
        """Writes weights, optimiser and step count into `folder`."""
        save_weights(self.model, folder)
        parameters = dict(self.model.named_parameters())
        save_optimizer(self._optimizer, parameters, folder, step=self._step)

    def load_shard(self, folder: Path) -> None:
        """Restores what `save_shard` wrote, bit for bit."""
        load_weights(self.model, folder)
        parameters = dict(self.model.named_parameters())
        self._step = load_optimizer(self._optimizer, parameters, folder)

    def weight_bytes(self) -> int:
        """Returns the bytes of the weights."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    def optimizer_bytes(self) -> int:
        """Returns the bytes of both AdamW moments."""
        return 2 * self.weight_bytes()
