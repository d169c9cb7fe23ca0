"""The part of each parameter that this process keeps, beside the parameter itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard  # noqa: TID251  layouts are read from it

from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.role_mesh import RoleMesh


@dataclass(frozen=True, slots=True)
class WeightPart:
    """One parameter of a role and which part of it lies in this process."""

    name: str
    """As in the state dict of the unsharded model, the first one where tensors are tied."""
    tied: tuple[str, ...]
    """Its other names."""
    parameter: nn.Parameter
    box: Box
    """What the process keeps between passes."""
    shape: tuple[int, ...]
    """Of the whole weight."""
    is_split_by_tensor: bool
    """Whether the tensor-parallel processes hold different parts."""
    is_split_by_replica: bool
    """Whether the replicas of a block hold different parts."""
    is_at_both_ends: bool = False
    """Whether the first and the last stage of a pipeline hold it, as embeddings and as head."""

    @property
    def tensor(self) -> Tensor:
        """The live part, of `box.shape`."""
        return local(self.parameter.detach())

    @property
    def gradient(self) -> Tensor | None:
        """The gradient of the part, if a pass has given one."""
        gradient, parameter = self.parameter.grad, self.parameter
        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
            # Partial sums, as tensor parallelism may leave them, are of no use to an optimiser.
            gradient = gradient.redistribute(placements=parameter.placements)
        return None if gradient is None else local(gradient)


def local(tensor: Tensor) -> Tensor:
    """Returns the part of a distributed tensor that lies here; others lie here as a whole."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def share(length: int, num_parts: int, index: int) -> tuple[int, int]:
    """Returns where part `index` of `length` rows begins and ends, as `torch.chunk` cuts them.

    All parts but the last ones are of one size; the last ones may be empty.
    """
    size = -(-length // num_parts)
    return min(index * size, length), min((index + 1) * size, length)


def rows_of(box: Box, num_parts: int, index: int) -> Box:
    """Returns part `index` of a box that is cut into parts along its first dimension."""
    start, stop = share(box.shape[0], num_parts, index)
    origin = box.start[0]
    return Box((origin + start, *box.start[1:]), (origin + stop, *box.stop[1:]))


def tensor_parallel_box(parameter: nn.Parameter) -> Box:
    """Returns the part of a parameter that this process holds of its replica."""
    whole = Box.whole(tuple(parameter.shape))
    if not isinstance(parameter, DTensor):
        return whole
    (placement,) = parameter.placements
    if not isinstance(placement, Shard):
        return whole
    mesh, dim = parameter.device_mesh, placement.dim
    coordinate = mesh.get_coordinate()
    assert coordinate is not None, "A parameter lies in the processes of its mesh."
    start, stop = list(whole.start), list(whole.stop)
    # Not the rank in the mesh's group, whose order is another where ranks do not ascend.
    start[dim], stop[dim] = share(parameter.shape[dim], mesh.size(), coordinate[0])
    return Box(tuple(start), tuple(stop))


def parameter_names(model: nn.Module) -> list[list[str]]:
    """Returns the names of each parameter of a whole model; several where it is tied."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return list(names.values())


def weight_parts(
    model: nn.Module,
    mesh: RoleMesh,
    names: Sequence[Sequence[str]],
    boxes: Mapping[str, Box],
    *,
    is_sharded: bool,
) -> Iterator[WeightPart]:
    """Yields the part of each parameter that is here, tied ones once.

    Args:
        model: as it was split.
        mesh: the role's processes.
        names: of the whole model's parameters, from `parameter_names`.
        boxes: what tensor parallelism has left of each name that is here.
        is_sharded: whether the replicas of a block hold different rows.
    """
    for name, *tied in names:
        held = [each for each in (name, *tied) if each in boxes]
        if not held:
            continue
        parameter, box = model.get_parameter(held[0]), boxes[held[0]]
        shape = tuple(parameter.shape)
        yield WeightPart(
            name=name,
            tied=tuple(tied),
            parameter=parameter,
            box=rows_of(box, mesh.degrees.block, mesh.shard_index) if is_sharded else box,
            shape=shape,
            is_split_by_tensor=box.shape != shape,
            is_split_by_replica=is_sharded,
            is_at_both_ends=len(held) <= len(tied),
        )
