"""Splits the layers of a decoder over the processes of a mesh: attention by heads, MLP by columns.

Projections into a layer's heads and inner width are cut by rows of their weight, those out of them
by columns, so each block needs one sum over the processes forward and one backward. Embeddings,
norms and heads stay whole and compute the same everywhere.

The cut weights are `DTensor`s, for FSDP and for whoever asks which part this is. They compute as
plain tensors: dispatching a matrix product of two `DTensor`s costs more than a small one takes.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, all_reduce  # noqa: TID251  blocks sum their parts
from torch.distributed.device_mesh import DeviceMesh  # noqa: TID251  who holds which part
from torch.distributed.tensor import DTensor, Shard, distribute_tensor  # noqa: TID251  the parts
from torch.nn.functional import linear

from flexrlhf.core.errors import ConfigError
from flexrlhf.core.model_families import TENSOR_PARALLEL_FAMILIES
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.pipeline_stage import PassedOn


def tensor_parallelise(model: nn.Module, mesh: DeviceMesh) -> None:
    """Cuts the model's layers over a one-dimensional mesh, in place.

    Over a mesh of one, or where the model is cut already, nothing is to be done.

    Every process of the mesh calls this with the same weights and keeps its part; nothing is sent.
    Passes and generation then give every process whole, equal results, and whole parameters the
    same gradient everywhere. A model on the meta device works too.

    Args:
        model: a causal language model, its sequence-classification twin or a `SharedActorCritic`.
        mesh: the processes that share one copy.

    Raises:
        ConfigError: the family cannot be cut, or the number of processes does not divide its heads,
            key-value heads or inner width. The model is unchanged then.
    """
    if mesh.size() == 1:
        return
    check_tensor_parallel(model, mesh.size())
    trunk: Any = pretrained(model).base_model
    if any(isinstance(part, _RowCutLinear) for part in trunk.modules()):
        return
    for layer in trunk.layers:
        if isinstance(layer, PassedOn):
            continue
        attention, mlp = layer.self_attn, layer.mlp
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            _cut_by_rows(projection, mesh)
        for projection in (mlp.gate_proj, mlp.up_proj):
            _cut_by_rows(projection, mesh)
        for projection in (attention.o_proj, mlp.down_proj):
            _cut_by_columns(projection, mesh)
        for block in (attention, mlp):
            _sum_input_gradient(block, mesh.get_group())
        if hasattr(attention, "q_norm"):
            for norm in (attention.q_norm, attention.k_norm):
                _sum_weight_gradient(norm, mesh.get_group())


def check_tensor_parallel(model: nn.Module, degree: int) -> None:
    """Checks that the layers of `model` can be cut over `degree` processes.

    Raises:
        ConfigError: they cannot; says which degrees would do.
    """
    config = pretrained(model).config.get_text_config()
    if config.model_type not in TENSOR_PARALLEL_FAMILIES:
        raise ConfigError(
            f"tensor_parallel = {degree}, but {config.model_type} models cannot be cut by heads.",
            f"Tensor parallelism works for {', '.join(TENSOR_PARALLEL_FAMILIES)}.",
            "Set tensor_parallel = 1 and shard by ZeRO instead, or choose one of these families.",
        )
    sizes = {
        "attention heads": config.num_attention_heads,
        "key-value heads": config.num_key_value_heads,
        "columns in the MLP": config.intermediate_size,
    }
    if not _divides(degree, sizes):
        possible = [str(number) for number in range(1, degree) if _divides(number, sizes)]
        listed = ", ".join(f"{size} {name}" for name, size in sizes.items())
        raise ConfigError(
            f"tensor_parallel = {degree} does not divide the model's {listed}.",
            f"Every device takes equally many; smaller degrees that do: {', '.join(possible)}.",
            "Change tensor_parallel, or the number of devices.",
        )


def _divides(degree: int, sizes: dict[str, int]) -> bool:
    return all(size % degree == 0 for size in sizes.values())


class _RowCutLinear(nn.Linear):
    """Computes some of the outputs from the whole input."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name is PyTorch's)
        bias = None if self.bias is None else _local(self.bias)
        return linear(input, _local(self.weight), bias)


class _ColumnCutLinear(nn.Linear):
    """Computes every output from some of the inputs, and adds up the processes' parts."""

    group: ProcessGroup

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name is PyTorch's)
        output = _Sum.apply(linear(input, _local(self.weight)), self.group)
        return output if self.bias is None else output + self.bias


def _cut_by_rows(projection: nn.Linear, mesh: DeviceMesh) -> None:
    for name, parameter in list(projection.named_parameters()):
        projection.register_parameter(name, _part(parameter, mesh, dim=0))
    projection.__class__ = _RowCutLinear


def _cut_by_columns(projection: nn.Linear, mesh: DeviceMesh) -> None:
    projection.register_parameter("weight", _part(projection.weight, mesh, dim=1))
    projection.__class__ = _ColumnCutLinear
    cast("_ColumnCutLinear", projection).group = mesh.get_group()


def _part(whole: Tensor, mesh: DeviceMesh, *, dim: int) -> nn.Parameter:
    part = distribute_tensor(whole.detach(), mesh, [Shard(dim)], src_data_rank=None)
    return nn.Parameter(part, requires_grad=whole.requires_grad)


def _local(parameter: Tensor) -> Tensor:
    return cast("DTensor", parameter).to_local()


def _sum_input_gradient(block: nn.Module, group: ProcessGroup) -> None:
    """Each process sends back what its part says of the block's input; the whole is their sum."""

    def share(_block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if inputs:
            return (_SummedGradient.apply(inputs[0], group), *inputs[1:]), named
        hidden = _SummedGradient.apply(named["hidden_states"], group)
        return inputs, {**named, "hidden_states": hidden}

    block.register_forward_pre_hook(share, with_kwargs=True)


def _sum_weight_gradient(norm: nn.Module, group: ProcessGroup) -> None:
    """Adds up the gradient of a whole weight that each process applies to its own heads only.

    The sum is put into the graph between parameter and norm, so that it happens once in each
    backward pass and whoever holds the parameter, FSDP too, finds an ordinary one.
    """
    whole: Any = type(norm)

    class SummedGradientNorm(whole):
        def forward(self, hidden_states: Tensor) -> Tensor:
            # An attribute of the instance hides the parameter of that name.
            self.__dict__["weight"] = _SummedGradient.apply(self.weight, group)
            try:
                return super().forward(hidden_states)
            finally:
                del self.__dict__["weight"]

    SummedGradientNorm.__name__ = whole.__name__
    norm.__class__ = SummedGradientNorm


class _Sum(torch.autograd.Function):
    """The sum over the processes forward; their common gradient backward."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        del ctx
        whole = part.clone(memory_format=torch.contiguous_format)
        all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradients[0], None


class _SummedGradient(torch.autograd.Function):
    """The same tensor forward; the sum of the processes' gradients backward."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        all_reduce(gradient, group=ctx.group)
        return gradient, None
