"""Training of one role on several devices: replicas, ZeRO 0 to 3, tensors, stages, offload."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from flexrlhf.learning.models.parallelise import ParallelModel
from flexrlhf.learning.models.pipeline import Pipeline
from flexrlhf.learning.training.gradient_norm import global_norm
from flexrlhf.learning.training.gradient_sums import (
    agree_on_gradients,
    broadcast_rows,
    scattered_gradients,
    sum_at_ends,
    summed_gradients,
)
from flexrlhf.learning.training.optimizer import (
    OptimizerSettings,
    build_optimizer,
    gradient_not_finite,
    set_learning_rate,
)
from flexrlhf.learning.training.owned_weights import OwnedWeight, owned_weights
from flexrlhf.learning.training.parallel_shard import layout_json, load_parts, save_parts
from flexrlhf.learning.training.precision import autocast
from flexrlhf.learning.training.protocol import StepReport
from flexrlhf.learning.training.shard import load_optimizer, save_optimizer

T = TypeVar("T")


class ParallelBackend:
    """Trains one process's part of a role; every process of the role makes the same calls.

    Sums of gradients equal those of one device: losses are already divided by global counts.

    Args:
        parallel: the split model, made for training.
        settings: optimiser and schedule.
        precision: `bfloat16` runs forward passes under autocast over float32 weights.
    """

    def __init__(
        self, parallel: ParallelModel, settings: OptimizerSettings, *, precision: str = "float32"
    ) -> None:
        assert parallel.mesh is not None, "One process alone trains with OneDeviceBackend."
        self.model = parallel.module
        self._parallel = parallel
        self._mesh = parallel.mesh
        self._settings = settings
        self._precision = precision
        trained = tuple(part for part in parallel.parts if part.parameter.requires_grad)
        self._owned = tuple(owned_weights(trained, parallel.mesh))
        degrees, is_split = parallel.mesh.degrees, parallel.needs_lockstep
        self._scatters = degrees.zero_stage > 0 and degrees.block > 1 and not is_split
        """Replicas of a block hold the same weights, but update different rows of them."""
        self._is_divided = self._scatters or is_split
        leaves = [owned.leaf for owned in self._owned if owned.leaf.numel()]
        self._optimizer = build_optimizer(leaves, settings)
        self._step = 0

    @property
    def replica(self) -> int:
        """Which replica of the role this process is a part of."""
        return self._mesh.replica

    @property
    def num_replicas(self) -> int:
        """Replicas among which the micro-batches of a step are divided."""
        return self._mesh.num_replicas

    @property
    def needs_lockstep(self) -> bool:
        """Whether every replica must make the same number of passes, with or without samples."""
        return self._parallel.needs_lockstep

    @property
    def pipeline(self) -> Pipeline | None:
        """Takes several micro-batches together through the stages of the model, if it has any."""
        return self._parallel.pipeline

    @property
    def device(self) -> torch.device:
        """Where batches must lie."""
        return self._mesh.device

    def autocast(self) -> AbstractContextManager[Any]:
        """Returns the context that forward passes of this role run in."""
        return autocast(self.device.type, self._precision)

    def forward(self, call: Callable[[nn.Module], T]) -> T:
        """Returns what `call` makes of the model."""
        return self._parallel.run(call)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of `loss`."""
        loss.backward()

    def gather(self, document: Any) -> list[Any]:
        """Returns one small JSON document of every replica, in their order; all call this."""
        return self._mesh.gather_replicas(document)

    def agree_max(self, number: int) -> int:
        """Returns the largest number among the replicas that go in lockstep; they all call this."""
        return self._parallel.agree_max(number)

    def step(self) -> StepReport:
        """Sums and clips the gradient, updates the weights, advances the schedule.

        Raises:
            RunFailed: the gradient is not finite, in every process alike; the weights are left as
                they were.
        """
        updated = self._sum_gradients()
        leaves = [owned for owned in updated if owned.leaf.numel()]
        gradients = [
            (owned.part, grad) for owned in leaves if (grad := owned.leaf.grad) is not None
        ]
        grad_norm = global_norm(gradients, self._mesh, is_split_by_replica=self._is_divided)
        if not math.isfinite(grad_norm):
            self.discard_gradient()
            raise gradient_not_finite(grad_norm, self._step)
        self._clip([gradient for _, gradient in gradients], grad_norm)
        rate = set_learning_rate(self._optimizer, self._step, self._settings)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._spread(updated)
        self._step += 1
        return StepReport(grad_norm, rate)

    def _sum_gradients(self) -> list[OwnedWeight]:
        """Gives the owned rows the gradients' sums; returns those whose weights have any."""
        has_gradient = agree_on_gradients([owned.part for owned in self._owned], self._mesh)
        found = [owned for owned, has in zip(self._owned, has_gradient, strict=True) if has]
        summed = scattered_gradients if self._scatters else summed_gradients
        parts = [owned.part for owned in found]
        sums = summed(parts, self._mesh)
        sum_at_ends(parts, sums, self._mesh)
        for owned, gradient in zip(found, sums, strict=True):
            owned.take_gradient(gradient)
        return found

    def _clip(self, gradients: list[Tensor], grad_norm: float) -> None:
        """Scales gradients down to the largest norm, as `nn.utils.clip_grad_norm_` does."""
        limit = self._settings.max_grad_norm
        if limit is not None and limit < grad_norm + 1e-6:
            torch._foreach_mul_(gradients, limit / (grad_norm + 1e-6))

    def _spread(self, updated: list[OwnedWeight]) -> None:
        """Brings new values to wherever this process or others use them."""
        for owned in updated:
            owned.write_back()
        if self._scatters:
            broadcast_rows([owned.part for owned in updated], self._mesh)
        self._parallel.weights_changed()

    def discard_gradient(self) -> None:
        """Forgets what `backward` added since the last step."""
        self._optimizer.zero_grad(set_to_none=True)
        self._parallel.forget_pass()

    def save_shard(self, folder: Path) -> None:
        """Writes what this process keeps of weights, optimiser and step count into `folder`.

        All processes of a role write into one folder. What several hold the first of them writes:
        nothing is left to write for further blocks, nor for replicas under ZeRO-0.
        """
        mesh = self._mesh
        if mesh.block_index > 0:
            return
        if self.needs_lockstep or mesh.shard_index == 0:
            save_parts(self._parallel.shards(), folder, self._weights_stem)
        if self._is_divided or mesh.shard_index == 0:
            save_optimizer(
                self._optimizer,
                self._leaves(),
                folder,
                step=self._step,
                stem=self._optimizer_stem,
                layout=self._layout(),
            )

    def load_shard(self, folder: Path) -> None:
        """Restores what the processes of the role wrote with `save_shard`, bit for bit."""
        load_parts(self._parallel.shards(), folder, self._weights_stem)
        self._parallel.weights_changed()
        for owned in self._owned:
            owned.read_again()
        self._step = load_optimizer(
            self._optimizer,
            self._leaves(),
            folder,
            stem=self._optimizer_stem,
            layout=self._layout(),
        )

    @property
    def _weights_stem(self) -> str:
        return self._stem("weights", is_divided=self.needs_lockstep)

    @property
    def _optimizer_stem(self) -> str:
        return self._stem("optimizer", is_divided=self._is_divided)

    def _stem(self, kind: str, *, is_divided: bool) -> str:
        """Names the files of what this process, and nobody with another name, keeps."""
        mesh = self._mesh
        stem = f"{kind}-{mesh.tensor_rank}-{mesh.shard_index if is_divided else 0}"
        return stem if mesh.degrees.pipeline == 1 else f"{stem}-{mesh.stage}"

    def _leaves(self) -> dict[str, nn.Parameter]:
        return {owned.part.name: owned.leaf for owned in self._owned if owned.leaf.numel()}

    def _layout(self) -> dict[str, Any]:
        return layout_json({owned.part.name: owned.box for owned in self._owned})

    def weight_bytes(self) -> int:
        """Returns the bytes of the weights that this process keeps between steps."""
        return sum(shard.tensor.nbytes for shard in self._parallel.shards().values())

    def optimizer_bytes(self) -> int:
        """Returns the bytes of both AdamW moments of the rows that are updated here."""
        return 2 * sum(owned.leaf.nbytes for owned in self._owned)
