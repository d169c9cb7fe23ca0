"""Answers the rows of a case file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import CaseRefused, case_of
from flexrlhf.planning.cases.case_file import read_cases, write_predictions
from flexrlhf.planning.cases.measures import answer
from flexrlhf.planning.costs.calibration import Calibration

_ANSWERED: Final = ("", "measure")


@dataclass(frozen=True, slots=True)
class Predicted:
    """The answer to one row."""

    value: float | None
    """None where the row is refused."""
    status: str
    """`ok`, or `refused:` and the reason."""
    assumptions: str = ""

    def cells(self) -> dict[str, str]:
        """Returns the columns that are added to the row."""
        value = "" if self.value is None else f"{self.value:.6g}"
        return {"predicted": value, "status": self.status, "assumptions": self.assumptions}


def predict_row(
    row: Mapping[str, str], line: int, *, calibration: Calibration | None = None
) -> Predicted:
    """Returns the answer to a row.

    Args:
        row: columns and their text.
        line: of the file, for messages.
        calibration: instead of that of the row's class.

    Raises:
        DataError: a number is none, or out of all range.
    """
    kind = (row.get("kind") or "").strip()
    if kind not in _ANSWERED:
        return Predicted(None, f"refused: kind {kind} is not for prediction")
    try:
        case = case_of(row, line)
    except CaseRefused as refusal:
        return Predicted(None, f"refused: {refusal}")
    taken = Assumptions()
    value = answer(case, taken, calibration=calibration)
    return Predicted(value, "ok", str(taken))


def predict_file(cases: Path, out: Path) -> list[Predicted]:
    """Answers every row of a case file and writes the rows with their answers.

    Raises:
        DataError: the case file is wrong, or the answers cannot be written.
    """
    rows = read_cases(cases)
    answers = [predict_row(row, line) for line, row in rows]
    write_predictions(
        out,
        [{**row, **found.cells()} for (_, row), found in zip(rows, answers, strict=True)],
    )
    return answers
