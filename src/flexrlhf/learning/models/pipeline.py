"""Passes of micro-batches through the stages of a pipeline, forward and backward.

Micro-batches keep their own shapes, so each is computed as one process would. Between stages their
hidden states travel flat, as the rows of a tensor that is as large for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import torch
import torch.distributed as dist  # noqa: TID251  the last stage tells the others its results
from torch import Tensor, nn
from torch.nn import functional

from flexrlhf.learning.data.experience import Batch
from flexrlhf.learning.models.forward import hidden_states
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.pipeline_stage import Received
from flexrlhf.learning.models.role_mesh import RoleMesh
from flexrlhf.learning.models.tensor_bytes import DTYPES

T = TypeVar("T")

_DTYPES: Final = tuple(DTYPES.values())
_MOST_DIMS: Final = 3
_UNDER_WAY: Final = 4
"""Micro-batches per stage that run forward together; a fifth of the time is then idle."""


@dataclass(frozen=True, slots=True)
class StagePass(Generic[T]):
    """One micro-batch on its way through the stages."""

    batch: Batch
    """On the device of the model."""
    call: Callable[[nn.Module], T]
    """What the last stage makes of it: runs trunk and heads on the batch."""


class Pipeline:
    """The stages of one replica, of which this process holds one.

    Args:
        module: the model, cut to this stage.
        mesh: the role's processes.
        received: where the trunk finds what came from the stage before; None in the first stage.
    """

    def __init__(self, module: nn.Module, mesh: RoleMesh, received: Received | None) -> None:
        self.module = module
        self.received = received
        self.dtype = pretrained(module).dtype
        """Of hidden states between stages."""
        self._mesh = mesh
        self._width = pretrained(module).config.get_text_config().hidden_size

    @property
    def is_last(self) -> bool:
        """Whether this process holds the stage that gives the model's output."""
        return self._mesh.is_last_stage

    def run(
        self,
        passes: Sequence[StagePass[T]],
        *,
        loss_of: Callable[[T], Tensor] | None = None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> list[T]:
        """Takes micro-batches through the stages; all of the replica give the same ones.

        Args:
            passes: at least one.
            loss_of: the scalar of a result whose gradient is added to the stage's weights; None
                runs forward only, without gradients.
            context: makes the context of a forward pass.

        Returns:
            What the calls returned, in the last stage; nothing in the others.
        """
        if loss_of is not None:
            return self._run_together(passes, loss_of, context)
        found: list[T] = []
        for group in self._groups(passes):
            found += self._run_together(group, None, context)
        return found

    def results(self, passes: Sequence[StagePass[Tensor]]) -> Iterator[Tensor]:
        """Yields what the calls return of each micro-batch, in every stage, without gradients."""
        for group in self._groups(passes):
            yield from self._told(group, self._run_together(group, None, nullcontext))

    def _groups(self, passes: Sequence[StagePass[T]]) -> Iterator[Sequence[StagePass[T]]]:
        """Yields as many as fill the stages without keeping all of their hidden states."""
        size = _UNDER_WAY * self._mesh.degrees.pipeline
        for start in range(0, len(passes), size):
            yield passes[start : start + size]

    def _run_together(
        self,
        passes: Sequence[StagePass[T]],
        loss_of: Callable[[T], Tensor] | None,
        context: Callable[[], AbstractContextManager[Any]],
    ) -> list[T]:
        rows = max(one.batch.tokens.numel() for one in passes)
        work = _StageWork(self, passes, rows, loss_of, context)
        with torch.set_grad_enabled(loss_of is not None):
            try:
                self._schedule(work, trains=loss_of is not None)
            except RuntimeError as error:
                # What failed inside a stage comes wrapped in a list of its tensors.
                raise (error.__cause__ or error) from None
        return work.results

    def _told(self, passes: Sequence[StagePass[Tensor]], own: list[Tensor]) -> list[Tensor]:
        """Returns the results of the last stage, in all of them."""
        mesh = self._mesh
        forms = torch.zeros(len(passes), 2 + _MOST_DIMS, dtype=torch.long, device=mesh.device)
        for form, result in zip(forms, own, strict=False):
            sizes = [_DTYPES.index(result.dtype), result.dim(), *result.shape]
            form[: len(sizes)] = torch.tensor(sizes)
        self._broadcast(forms)
        told: list[Tensor] = []
        for place, (dtype, dims, *sizes) in enumerate(forms.tolist()):
            empty = torch.empty(sizes[:dims], dtype=_DTYPES[dtype], device=mesh.device)
            result = own[place].contiguous() if mesh.is_last_stage else empty
            self._broadcast(result)
            told.append(result)
        return told

    def _broadcast(self, tensor: Tensor) -> None:
        """Sends a tensor of the last stage to the others."""
        mesh = self._mesh
        dist.broadcast(tensor, src=mesh.stage_ranks[-1], group=mesh.stage_group)

    def _schedule(self, work: _StageWork[Any], *, trains: bool) -> None:
        from torch.distributed.pipelining import (  # noqa: TID251  takes a second to import
            PipelineStage,
            Schedule1F1B,
            ScheduleGPipe,
        )

        mesh, count = self._mesh, len(work.passes)
        hidden = torch.empty(
            work.rows, self._width, dtype=self.dtype, device="meta", requires_grad=trains
        )
        loss = torch.empty((), dtype=self.dtype, device="meta", requires_grad=trains)
        stage = PipelineStage(
            work,
            mesh.stage,
            mesh.degrees.pipeline,
            mesh.device,
            input_args=() if mesh.stage == 0 else (hidden,),
            output_args=(loss,) if mesh.is_last_stage else (hidden,),
            group=mesh.stage_group,
        )
        # A group has its processes in the order of their ranks, which need not be that of stages.
        stage.stage_index_to_group_rank = {
            index: dist.get_group_rank(mesh.stage_group, rank)
            for index, rank in enumerate(mesh.stage_ranks)
        }
        # One forward, one backward needs a micro-batch per stage.
        alternates = trains and count >= mesh.degrees.pipeline
        schedule = (Schedule1F1B if alternates else ScheduleGPipe)(
            stage,
            count,
            loss_fn=(lambda loss, _: loss) if trains else None,
            scale_grads=False,  # losses are divided by global counts already
        )
        places = torch.arange(count)
        is_target = trains and mesh.is_last_stage
        schedule.step(place=places, target=places if is_target else None, return_outputs=False)


class _StageWork(nn.Module, Generic[T]):
    """What torch's schedules take for the module of a stage: it is told a micro-batch's place."""

    def __init__(
        self,
        pipeline: Pipeline,
        passes: Sequence[StagePass[T]],
        rows: int,
        loss_of: Callable[[T], Tensor] | None,
        context: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        super().__init__()
        self.module = pipeline.module
        self.passes = passes
        self.rows = rows
        """Of the tensor in which hidden states travel."""
        self.results: list[T] = []
        self._pipeline = pipeline
        self._loss_of = loss_of
        self._context = context

    def forward(self, hidden_ND: Tensor | None = None, *, place: Tensor) -> Tensor:
        one, received = self.passes[int(place)], self._pipeline.received
        if received is not None and hidden_ND is not None:
            shape = one.batch.tokens.shape
            received.hidden = hidden_ND[: shape.numel()].view(*shape, -1)
        with self._context():
            if self._pipeline.is_last:
                return self._finished(one.call(self.module))
            hidden_BTD = hidden_states(self.module, one.batch)
        return self._flat(hidden_BTD)

    def _finished(self, result: T) -> Tensor:
        self.results.append(result)
        return torch.zeros(()) if self._loss_of is None else self._loss_of(result)

    def _flat(self, hidden_BTD: Tensor) -> Tensor:
        hidden_ND = hidden_BTD.flatten(0, 1).to(self._pipeline.dtype)
        padded_ND = functional.pad(hidden_ND, (0, 0, 0, self.rows - len(hidden_ND)))
        return padded_ND.contiguous()
