from __future__ import annotations

from xml.etree import ElementTree

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.report.progress_picture import write_progress_picture
from flexrlhf.report.svg import nice_ticks

_SVG = "{http://www.w3.org/2000/svg}"


def drawing(folder, tmp_path):
    return ElementTree.parse(write_progress_picture(folder, tmp_path / "p.svg")).getroot()


def words(root):
    return [node.text for node in root.iter(f"{_SVG}text")]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.02, 0.33, [0.0, 0.1, 0.2, 0.3, 0.4]),
        (-1.0, 1.0, [-1.0, -0.5, 0.0, 0.5, 1.0]),
        (0.0, 1000.0, [0.0, 250.0, 500.0, 750.0, 1000.0]),
        (2.0, 2.0, [1.5, 2.0, 2.5]),
    ],
)
def test_ticks_are_round_and_span_the_values(low, high, ticks):
    assert nice_ticks(low, high) == ticks


def test_reward_and_kl_stand_side_by_side(runs, tmp_path):
    root = drawing(runs.write("ppo"), tmp_path)
    assert root.get("width") == "840"
    assert "Reward" in words(root)
    assert "KL to the reference, nats per token" in words(root)
    assert len(list(root.iter(f"{_SVG}polygon"))) == 1


def test_the_line_goes_through_the_values(runs, tmp_path):
    lines = [
        {"iteration": i, "loss/supervised": loss} for i, loss in ((1, 4.0), (2, 2.0), (3, 0.0))
    ]
    root = drawing(runs.write("sft", metrics=lines), tmp_path)
    (line,) = root.iter(f"{_SVG}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
    (x1, y1), (x2, y2), (x3, y3) = points
    assert x1 < x2 < x3
    assert x2 == pytest.approx((x1 + x3) / 2)
    assert y2 == pytest.approx((y1 + y3) / 2)
    assert y1 < y3, "a larger loss stands higher"


def test_one_iteration_is_enough(runs, tmp_path):
    root = drawing(runs.write("short", metrics=[runs.line(1)]), tmp_path)
    assert "Reward" in words(root)


def test_the_last_stage_is_drawn(runs, tmp_path):
    assert "Reward" in words(drawing(runs.write_staged(), tmp_path))


def test_a_run_with_nothing_to_draw_is_refused(runs, tmp_path):
    folder = runs.write("bare", metrics=[{"iteration": 1, "samples": 3}])
    with pytest.raises(ConfigError, match="nothing to draw"):
        write_progress_picture(folder, tmp_path / "p.svg")
