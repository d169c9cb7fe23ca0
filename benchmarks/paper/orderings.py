"""Pairs of one table that the simulation orders otherwise than the paper."""

from __future__ import annotations

from itertools import combinations
from typing import Final

from markdown_text import model_name
from published import Cell, cells

_TABLES: Final = {"I": "flex-t1-", "II": "flex-t2-", "V": "flex-t5-"}
_SHARED: Final = ("flex-t1-023", "flex-t1-024")
"""Rows of Table I that Table II prints as well."""
_TIE: Final = 0.03


def contradicted() -> tuple[list[str], int]:
    """Returns what is ordered otherwise, as sentences, and the number of pairs that agree."""
    wrong: list[str] = []
    num_right = 0
    for table, prefix in _TABLES.items():
        rows = [cell for name, cell in cells().items() if name.startswith(prefix)]
        rows += [cells()[name] for name in _SHARED] if table == "II" else []
        for first, second in combinations((c for c in rows if not c.is_fit), 2):
            if first.row["actor_model"] != second.row["actor_model"]:
                continue
            published = first.published / second.published
            simulated = first.simulated / second.simulated
            if abs(published - 1) < _TIE:
                continue
            if (published > 1) == (simulated > 1):
                num_right += 1
            else:
                wrong.append(f"Table {table}: {_sentence(first, second, published, simulated)}")
    return wrong, num_right


def _sentence(first: Cell, second: Cell, published: float, simulated: float) -> str:
    model = model_name(first.row["actor_model"])
    return (
        f"{model}, {_named(first)} over {_named(second)}: published {published:.2f}, simulated"
        f" {simulated:.2f}."
    )


def _named(cell: Cell) -> str:
    return f"{cell.row['strategy']} on {cell.row['n_gpus']}"
