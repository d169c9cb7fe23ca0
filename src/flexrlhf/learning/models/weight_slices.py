"""The weights of a model folder, of which only the parts that are asked for are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from safetensors import safe_open
from torch import Tensor

from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.tensor_files import disk_errors

_ONE_FILE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"


class WeightSlices:
    """Named weights in safetensors files.

    Args:
        folder: with one file of weights, or an index of several.

    Raises:
        OSError: a file is missing or damaged.
        ValueError: the index is.
    """

    def __init__(self, folder: Path) -> None:
        if (folder / _ONE_FILE).is_file():
            files = [folder / _ONE_FILE]
        else:
            index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
            files = [folder / name for name in sorted(set(index["weight_map"].values()))]
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Of every weight that the files hold."""
        self._files: dict[str, Path] = {}
        for file in files:
            with disk_errors(), safe_open(file, framework="pt") as content:
                for name in content.keys():  # noqa: SIM118 - it is no mapping
                    self.shapes[name] = tuple(content.get_slice(name).get_shape())
                    self._files[name] = file

    def read(self, name: str, box: Box) -> Tensor:
        """Returns a box of a weight, in the type in which the files have it.

        Raises:
            OSError: the file is damaged.
        """
        with disk_errors(), safe_open(self._files[name], framework="pt") as content:
            if not box.shape:
                return content.get_tensor(name)
            return content.get_slice(name)[box.within(Box.whole(self.shapes[name]))]
