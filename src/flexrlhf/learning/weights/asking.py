"""How the holders of weights are asked; the way to them is somebody else's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from torch import Tensor

_MAX_THREADS: Final = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


class Answer(Protocol):
    """What a source answers."""

    @property
    def header(self) -> Mapping[str, Any]:
        """JSON values by name."""
        ...

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors by name."""
        ...


Ask = Callable[[str, str, Mapping[str, Any]], Answer]
"""Asks a source by its address, with a key and a query; raises a FlexError by a deadline."""


def in_threads(call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Returns `call` of every item, of several at once; when one raises, the others end first."""
    if len(items) <= 1:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(_MAX_THREADS, len(items)), "pull weights") as pool:
        return list(pool.map(call, items))
