"""Random weights drawn tensor by tensor, with the numbers that a whole model would get.

A model without memory is made while every call that would draw or set its weights is written down.
Played back, the calls take the same numbers from the same generator, one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flexrlhf.learning.models.seeding import seeded_weights

_SETS_ALL: Final = frozenset({"aten::normal_", "aten::uniform_", "aten::zero_", "aten::fill_"})
"""Calls after which nothing is left of what a tensor held."""

Keep = Callable[[str, Tensor], None]
"""Takes a weight's name and its numbers, which are only valid during the call."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call on a weight, or on a tensor that only counts for the numbers it uses up."""

    weight: str | None
    function: Any
    arguments: tuple[Any, ...]
    """Behind the tensor."""
    named: Mapping[str, Any]
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Script:
    """How every weight of a model is drawn."""

    calls: tuple[_Call, ...]
    shapes: Mapping[str, tuple[int, ...]]
    """Of the weights."""

    @torch.no_grad()
    def play(self, seed: int, keep: Keep) -> None:
        """Draws every weight; the last time that `keep` gets a weight, it is as the model's."""
        weight, numbers = None, torch.empty(0)
        with seeded_weights(seed):
            for call in self.calls:
                if call.weight is None:
                    numbers_used = torch.empty(call.shape, dtype=call.dtype)
                    call.function(numbers_used, *call.arguments, **call.named)
                    continue
                if call.weight != weight:
                    if weight is not None:
                        keep(weight, numbers)
                    weight = call.weight
                    numbers = torch.empty(self.shapes[weight], dtype=call.dtype)
                part = numbers.as_strided(call.shape, call.stride, call.offset)
                call.function(part, *call.arguments, **call.named)
        if weight is not None:
            keep(weight, numbers)


class Recorder(TorchDispatchMode):
    """Gives no memory to what is made inside by `torch.empty`, and writes down what would set it.

    Modules make their large weights so. All else is made as ever, on the CPU, buffers for one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Tensor, _Call]] = []
        self._is_complete = True

    def script(self, model: nn.Module) -> Script | None:
        """Returns how the model's weights are drawn; None where not all of them are known.

        Args:
            model: made inside; weights that have memory already are not asked about.
        """
        weights = [(n, parameter) for n, parameter in model.named_parameters() if parameter.is_meta]
        names = {_memory(parameter): name for name, parameter in weights}
        shapes = {name: tuple(parameter.shape) for name, parameter in weights}
        calls = [replace(call, weight=names.get(_memory(t))) for t, call in self._calls]
        calls = [call for call in calls if call.weight is not None or _is_random(call.function)]
        on_weights = [call for call in calls if call.weight is not None]
        firsts = [
            call
            for call, before in zip(on_weights, [None, *on_weights], strict=False)
            if before is None or before.weight != call.weight
        ]
        sets_all = all(
            call.function._schema.name in _SETS_ALL and call.shape == shapes[str(call.weight)]
            for call in firsts
        )
        known = {call.weight for call in on_weights}
        if not self._is_complete or known != shapes.keys() or not sets_all:
            return None
        return Script(tuple(calls), shapes)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs a call as ever, or without memory, and writes down what sets a tensor without."""
        named = dict(kwargs or {})
        if func is torch.ops.aten.empty.memory_format:
            named["device"] = torch.device("meta")
        elif func._schema.is_mutable and _is_meta(args[0]):
            self._note(func, args[0], args[1:], named)
        elif _is_random(func):
            self._is_complete = False
        return func(*args, **named)

    def _note(self, func: Any, target: Tensor, arguments: tuple[Any, ...], named: Any) -> None:
        named = {name: value for name, value in named.items() if value is not None}
        if any(isinstance(v, Tensor | torch.Generator) for v in (*arguments, *named.values())):
            self._is_complete = False
            return
        shape, stride, offset = (
            tuple(target.shape),
            tuple(target.stride()),
            int(target.storage_offset()),
        )
        call = _Call(None, func, arguments, named, shape, stride, offset, target.dtype)
        self._calls.append((target, call))  # the tensor lives on, so that none takes its place


def _is_random(function: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in function.tags


def _is_meta(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
