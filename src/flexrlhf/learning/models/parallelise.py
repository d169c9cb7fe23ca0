"""Splits one role's model over its processes: stages, tensors, then FSDP2 for ZeRO-2 and 3.

ZeRO-0 and 1 keep the weights of a replica whole; what they shard is the optimiser's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist  # noqa: TID251  replicas agree on numbers of passes here
from torch import Tensor, nn
from torch.distributed.fsdp import (  # noqa: TID251
    CPUOffloadPolicy,
    FSDPModule,
    OffloadPolicy,
    fully_shard,
)

from flexrlhf.core.model_families import is_sharded
from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.materialising import materialise
from flexrlhf.learning.models.part_values import PartValues
from flexrlhf.learning.models.pipeline import Pipeline
from flexrlhf.learning.models.pipeline_stage import cut_to_stage
from flexrlhf.learning.models.role_mesh import RoleMesh
from flexrlhf.learning.models.shards import Shard, whole_shards
from flexrlhf.learning.models.tensor_parallel import tensor_parallelise
from flexrlhf.learning.models.weight_parts import (
    WeightPart,
    parameter_names,
    tensor_parallel_box,
    weight_parts,
)

T = TypeVar("T")

_WEIGHTS_SHARDED: Final = 3


class _Root(nn.Module):
    """Lets a whole pass, trunk and heads, run between the hooks of FSDP's root module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, call: Callable[[nn.Module], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Runs `call` on the model."""
        return call(self.module)


class ParallelModel:
    """One process's part of a role's model; `parallelise` makes it, or this for a whole model.

    Args:
        module: the model, whose parameters may be split.
        mesh: the role's processes; None where there is only this one.
        parts: what this process holds of each parameter.
        buffers: names of the persistent buffers, which every process holds as a whole.
        root: FSDP's root module around `module`, where weights or gradients are sharded.
        pipeline: runs the stages together, where the model is cut into several.
    """

    def __init__(
        self,
        module: nn.Module,
        mesh: RoleMesh | None = None,
        parts: tuple[WeightPart, ...] = (),
        buffers: tuple[str, ...] = (),
        root: nn.Module | None = None,
        *,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.module = module
        self.mesh = mesh
        self.parts = parts
        self.pipeline = pipeline
        self._buffers = buffers
        self._root = root
        self._has_run = False

    @property
    def device(self) -> torch.device:
        """Where batches must lie."""
        return next(self.module.parameters()).device if self.mesh is None else self.mesh.device

    @property
    def needs_lockstep(self) -> bool:
        """Whether every replica must make the same number of passes, with or without work."""
        return self._root is not None

    def run(self, call: Callable[[nn.Module], T]) -> T:
        """Returns what `call` makes of the model; every pass must go through here or `pipeline`.

        Args:
            call: runs the forward pass; tensors with a gradient in its result may lie in tuples,
                lists, mappings and dataclasses.
        """
        assert self.pipeline is None, "One stage alone makes nothing of a batch."
        if self._root is None:
            return call(self.module)
        results: list[T] = []

        def within(module: nn.Module) -> tuple[Tensor, ...]:
            results.append(call(module))
            return tuple(_differentiable(results[0]))

        self._has_run = True
        # FSDP puts the hooks that begin a backward pass on these tensors.
        self._root(within)
        return results[0]

    def agree_max(self, number: int) -> int:
        """Returns the largest number among the replicas that go in lockstep, else the number."""
        if self.mesh is None or not self.needs_lockstep:
            return number
        largest = torch.tensor([number], device=self.mesh.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX, self.mesh.shard_group)
        return int(largest)

    def forget_pass(self) -> None:
        """Drops gradients, and what a pass that broke off has left; all replicas call it."""
        self.module.zero_grad(set_to_none=True)  # of gathered weights, while they are
        if self._root is not None and self._has_run:
            # Else FSDP takes the next backward pass for a part of the one that broke off, and
            # never sums the gradients of the root.
            reset = getattr(self._root, "reset_iter_state", None)  # since torch 2.13
            if reset is not None:
                reset()
        for part in self.parts:
            part.parameter.grad = None

    def weights_changed(self) -> None:
        """Drops gathered copies of the weights, after their parts were written."""
        for module in self._sharded_modules():
            module.reshard()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Keeps the whole weights of the replica here while inside; passes then gather nothing.

        The replicas of a block enter together, and need no lockstep inside.
        """
        sharded = self._sharded_modules()
        frees_weights = self.mesh is not None and self.mesh.degrees.zero_stage == _WEIGHTS_SHARDED
        for module in sharded:
            module.unshard()
            module.set_reshard_after_forward(reshard_after_forward=False, recurse=False)
        try:
            yield
        finally:
            for module in sharded:
                module.set_reshard_after_forward(frees_weights, recurse=False)
                module.reshard()

    def _sharded_modules(self) -> list[FSDPModule]:
        modules = () if self._root is None else self._root.modules()
        return [module for module in modules if isinstance(module, FSDPModule)]

    def shards(self) -> dict[str, Shard]:
        """Returns what this process holds of every parameter and persistent buffer.

        Tied tensors come once, under their first name; names are those of the unsharded model.
        Parts without elements are left out.
        """
        if self.mesh is None:
            return whole_shards(self.module)
        held = {
            part.name: Shard(part.box, part.shape, part.tensor, part.tied)
            for part in self.parts
            if part.box.num_elements
        }
        # Asking for the state dict would make FSDP drop what this process has gathered, alone.
        buffers = {name: self.module.get_buffer(name).detach() for name in self._buffers}
        return held | {
            name: Shard(Box.whole(tuple(buffer.shape)), tuple(buffer.shape), buffer)
            for name, buffer in buffers.items()
        }


def parallelise(
    model: nn.Module, mesh: RoleMesh, *, trains: bool, values: PartValues | None = None
) -> ParallelModel:
    """Keeps of a whole model what this process of the role holds; all of them call it together.

    Args:
        model: the whole model on the device of the mesh, the same in every process; or on the meta
            device, where `values` are given.
        mesh: the role's processes and degrees, this one among them.
        trains: whether gradients are wanted; a frozen model is split under ZeRO-3 only.
        values: of what is held here.

    Raises:
        ConfigError: the model cannot be cut so, for its family or its sizes.
    """
    if not trains:
        model.requires_grad_(requires_grad=False)
    degrees = mesh.degrees
    names = parameter_names(model)
    pipeline = None
    if degrees.pipeline > 1:
        received = cut_to_stage(model, mesh.stage, degrees.pipeline)
        pipeline = Pipeline(model, mesh, received)
    tensor_parallelise(model, mesh.tensor_mesh)
    boxes = {
        name: tensor_parallel_box(parameter)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }
    buffers = tuple(name for name in model.state_dict() if name not in boxes)
    has_parts = is_sharded(degrees.zero_stage, degrees.block, trains=trains)
    root = _fully_sharded(model, mesh, trains=trains) if has_parts else None
    if values is not None:
        materialise(root or model, model, names, mesh.device)
    parts = tuple(weight_parts(model, mesh, names, boxes, is_sharded=has_parts))
    if values is not None:
        values.fill(parts)
    return ParallelModel(model, mesh, parts, buffers, root, pipeline=pipeline)


def _fully_sharded(model: nn.Module, mesh: RoleMesh, *, trains: bool) -> nn.Module:
    """Shards each layer, and what lies outside of them, over the replicas of a block.

    Gradients are added up inside the block only; across blocks that is done once per step.
    """
    root = _Root(model)
    frees_weights = mesh.degrees.zero_stage == _WEIGHTS_SHARDED
    offload = OffloadPolicy()
    if mesh.degrees.offload and not trains:
        offload = CPUOffloadPolicy(pin_memory=mesh.device.type == "cuda")
    for module in (*_layers(model), root):
        fully_shard(
            module,
            mesh=mesh.shard_mesh,
            reshard_after_forward=frees_weights,
            offload_policy=offload,
        )
        assert isinstance(module, FSDPModule)
        # Losses are already divided by global counts, so gradients add up.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        # ZeRO-2 gathers the weights once per optimiser step.
        module.set_reshard_after_backward(frees_weights, recurse=False)
    return root


def _layers(model: nn.Module) -> list[nn.Module]:
    """Returns the layers of the trunk: the longest list of modules in it."""
    trunk = pretrained(model).base_model
    lists = [module for module in trunk.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len)) if lists else []


def _differentiable(result: Any) -> Iterator[Tensor]:
    """Yields the tensors with a gradient in what a pass returned."""
    if isinstance(result, Tensor):
        if result.requires_grad:
            yield result
        return
    inner: list[Any] = []
    if is_dataclass(result):
        inner = [getattr(result, field.name) for field in fields(result)]
    elif isinstance(result, Mapping):
        inner = list(result.values())
    elif isinstance(result, tuple | list):
        inner = list(result)
    for part in inner:
        yield from _differentiable(part)
