"""The first values of what one process holds of a model, without the rest of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.drawing import Script
from flexrlhf.learning.models.weight_parts import WeightPart
from flexrlhf.learning.models.weight_slices import WeightSlices


class PartValues(Protocol):
    """Gives the parameters of a model their values."""

    def fill(self, parts: Sequence[WeightPart]) -> None:
        """Writes this process's part of every weight.

        Raises:
            OSError: a file of weights is damaged.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReadValues:
    """Values in the files of a folder."""

    slices: WeightSlices
    names: Mapping[str, str]
    """Of each weight of the model in the files."""

    @torch.no_grad()
    def fill(self, parts: Sequence[WeightPart]) -> None:
        """Reads what is held here and nothing else."""
        for part in parts:
            if part.box.num_elements:
                part.tensor.copy_(self.slices.read(self.names[part.name], part.box))


@dataclass(frozen=True, slots=True)
class DrawnValues:
    """Values drawn from a seed, as those of the whole model would be."""

    script: Script
    seed: int
    made: Mapping[str, Tensor]
    """Small weights that are not drawn, such as those of norms."""

    @torch.no_grad()
    def fill(self, parts: Sequence[WeightPart]) -> None:
        """Draws every weight, one after the other, and keeps what is held here."""
        held = {part.name: part for part in parts if part.box.num_elements}

        def keep(name: str, numbers: Tensor) -> None:
            if name in held:
                _copy_part(held[name], numbers)

        for name, numbers in self.made.items():
            keep(name, numbers)
        self.script.play(self.seed, keep)


@dataclass(frozen=True, slots=True)
class WithFresh:
    """Values of a trunk, and of small heads that are known as a whole."""

    trunk: PartValues
    fresh: Mapping[str, Tensor]
    prefix: str = ""
    """Of the trunk's names in the model."""

    @torch.no_grad()
    def fill(self, parts: Sequence[WeightPart]) -> None:
        """Fills the trunk and the heads."""
        self.trunk.fill(
            [
                replace(part, name=part.name.removeprefix(self.prefix))
                for part in parts
                if part.name not in self.fresh
            ]
        )
        for part in parts:
            if part.name in self.fresh and part.box.num_elements:
                _copy_part(part, self.fresh[part.name])


def _copy_part(part: WeightPart, whole: Tensor) -> None:
    part.tensor.copy_(whole[part.box.within(Box.whole(part.shape))])
