"""The table of predicted against measured, from a plan with a prediction and a few metrics."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from flexrlhf.report.prediction_view import prediction_table
from flexrlhf.report.run_folder import RunRecord

PREDICTED: dict[str, Any] = {
    "iteration_s": 3.0,
    "stage_s": {"generate": 1.0, "train": 1.5, "sync": 0.0},
    "peak_bytes": {"0": {"generate": 2**30, "train": 3 * 2**30}},
}


class Cells(HTMLParser):
    """The texts of a table's body, row by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.rows and data.strip():
            self.rows[-1].append(data.strip())


def record(predicted: Any) -> RunRecord:
    lines = [
        {"iteration": 1, "time/generate_s": 9.0, "time/iteration_s": 9.0},
        {"iteration": 2, "time/generate_s": 2.0, "time/train_s": 1.0, "time/iteration_s": 4.0},
        {"iteration": 3, "time/generate_s": 1.6, "time/train_s": 1.0, "time/iteration_s": 4.0},
    ]
    metrics = tuple({**line, "memory/peak_bytes": 4 * 2**30} for line in lines)
    return RunRecord(
        path=Path(),
        name="run",
        config={},
        config_text="",
        plan={"plans": [{"predicted": predicted}]},
        metrics=metrics,
        timelines={},
        answers=(),
        environment={},
        log_tail="",
        notes=(),
    )


def test_each_stage_stands_beside_its_median():
    table = prediction_table(record(PREDICTED))
    assert table is not None
    _, *rows = Cells(str(table)).rows
    assert rows == [
        ["generate", "1 s", "2 s", "-50 %"],
        ["train", "1.5 s", "1 s", "+50 %"],
        ["iteration", "3 s", "4 s", "-25 %"],
        ["peak memory", "3 GiB", "4 GiB", "-25 %"],
    ]


@pytest.mark.parametrize(
    "predicted",
    [None, 3, {"iteration_s": "long"}, {"iteration_s": -1.0, "peak_bytes": {"0": 3}}, {}],
)
def test_a_plan_without_a_usable_prediction_has_no_table(predicted):
    assert prediction_table(record(predicted)) is None


def test_a_run_without_metrics_or_plan_has_no_table():
    whole = record(PREDICTED)
    assert prediction_table(replace(whole, metrics=())) is None
    assert prediction_table(replace(whole, plan={})) is None
