"""The paper's rows, each with what `flexrlhf predict` answers to it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from flexrlhf.planning.cases.prediction import predict_row

_ROWS: Final = Path(__file__).parents[1] / "published" / "published_throughput.csv"
_PREFIX: Final = "flex-"
_MEMORY: Final = "fits"

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """One published number beside the simulated one."""

    row: Row
    simulated: float
    assumptions: tuple[str, ...]

    @property
    def identity(self) -> str:
        """The row's name."""
        return self.row["id"]

    @property
    def published(self) -> float:
        """What the paper says, by its digest."""
        return float(self.row["value"])

    @property
    def is_fit(self) -> bool:
        """Whether the number is that something fits (1) or does not (0)."""
        return self.row["metric"] == _MEMORY


def row_named(identity: str) -> Row:
    """Returns a row of the published measurements."""
    return _rows()[identity]


@cache
def cells() -> Mapping[str, Cell]:
    """Returns the paper's numbers by the names of their rows, second printings left out."""
    found = (
        _cell(line, row)
        for line, row in enumerate(_rows().values(), start=2)
        if row["id"].startswith(_PREFIX) and "duplicate_of" not in row["variant"]
    )
    return {cell.identity: cell for cell in found}


def predicted(row: Row, metric: str) -> float:
    """Returns what `flexrlhf predict` answers if another metric of a row is asked for."""
    answer = predict_row({**row, "metric": metric}, 0)
    assert answer.value is not None, answer.status
    return answer.value


@cache
def _rows() -> Mapping[str, Row]:
    with _ROWS.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def _cell(line: int, row: Row) -> Cell:
    """Out of memory is no measurement by its kind, but it can be predicted."""
    asked = {**row, "kind": "measure"} if row["metric"] == _MEMORY else row
    answer = predict_row(asked, line)
    assert answer.value is not None, answer.status
    return Cell(row, answer.value, tuple(answer.assumptions.split("; ")))
