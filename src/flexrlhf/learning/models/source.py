"""Where a role's model comes from: a path or an architecture, with dtype, seed and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from flexrlhf.core.errors import ConfigError, nearest

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Everything needed to build one role's model; the same source always gives the same weights.

    Raises:
        ConfigError: not exactly one of `path` and `architecture` is given, or `dtype` is unknown.
    """

    path: str | None = None
    """A Hugging Face folder, a `.gguf` file, or `hub:NAME`."""
    architecture: Mapping[str, Any] | None = None
    """A Hugging Face config with its `model_type`; the weights are drawn from `seed`."""
    tokenizer: str | None = None
    """Path of the tokenizer when it does not lie beside the model."""
    dtype: str = "float32"
    seed: int = 0
    """Draws random weights and fresh heads; the global random state is neither read nor changed."""

    def __post_init__(self) -> None:
        if (self.path is None) == (self.architecture is None):
            given = "neither" if self.path is None else "both"
            raise ConfigError(
                f"A model has {given} of path and an architecture (init: random).",
                "A model is either loaded or drawn at random.",
                "Give one of the two.",
            )
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"dtype = {self.dtype!r} is unknown.",
                f"Known: {', '.join(DTYPES)}.",
                nearest(self.dtype, DTYPES) or "Choose one of these.",
            )

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of every parameter."""
        return DTYPES[self.dtype]
