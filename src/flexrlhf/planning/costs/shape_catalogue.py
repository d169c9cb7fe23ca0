"""Shapes of known models by their names, from the table that the package ships.

The table's columns are those of `ModelShape`, with `mlp` for `gated_mlp`, and besides them the
published counts (`params_total`, `params_active`), the `source` of each shape, and whether it was
found in a public file or table (`verified`) or written down from memory.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from flexrlhf.core.errors import ConfigError, nearest
from flexrlhf.planning.costs.shape import Matrix, ModelShape

_TABLE: Final = "model_shapes.csv"
_COUNTS: Final = (
    "layers",
    "hidden",
    "ffn",
    "heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "experts",
    "experts_per_token",
    "shared_experts",
    "expert_ffn",
    "dense_layers",
    "recurrent_layers",
    "state_values",
    "extra_params",
)
"""Columns in which an empty cell is 0."""
_OPTIONAL_COUNTS: Final = (
    "attention_layers",
    "attention_width",
    "cache_values",
    "mlp_layers",
    "shared_ffn",
    "embedding_width",
)
"""Columns in which an empty cell is the usual."""

_MATRICES: Final = ("attention_matrices", "recurrent_matrices")


def catalogue_rows() -> Iterator[Mapping[str, str]]:
    """Yields the rows of the table as they are written."""
    text = (files("flexrlhf.planning.costs") / _TABLE).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def _shape(row: Mapping[str, str]) -> ModelShape:
    values: dict[str, Any] = {key: int(row[key] or 0) for key in _COUNTS}
    values |= {key: int(row[key]) if row[key] else None for key in _OPTIONAL_COUNTS}
    values |= {key: _matrices(row[key]) for key in _MATRICES}
    return ModelShape(
        name=row["name"],
        tied_embeddings=row["tied_embeddings"] == "yes",
        gated_mlp=row["mlp"] == "gated",
        **values,
    )


def _matrices(cell: str) -> tuple[Matrix, ...]:
    """Reads `4096x1024 1024x4096`: width in x width out."""
    pairs = (matrix.partition("x") for matrix in cell.split())
    return tuple((int(width_in), int(width_out)) for width_in, _, width_out in pairs)


SHAPES: Final[Mapping[str, ModelShape]] = MappingProxyType(
    {row["name"]: _shape(row) for row in catalogue_rows()}
)


def shape_named(name: str) -> ModelShape:
    """Returns the shape of a known model; capitals do not matter.

    Raises:
        ConfigError: no model has that name.
    """
    known = name.strip().lower()
    if known not in SHAPES:
        raise ConfigError(
            f"No model shape is called {name!r}.",
            f"Known: {', '.join(SHAPES)}; or the path of a config.json.",
            nearest(known, SHAPES) or "Choose one of these.",
        )
    return SHAPES[known]
