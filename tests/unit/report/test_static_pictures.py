"""Pictures that need no script: what is drawn where, learnt from the SVG alone."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from flexrlhf.core.timeline import Span
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.report.colours import ROLE_COLOURS, STAGE_COLOURS
from flexrlhf.report.layout_picture import layout_picture
from flexrlhf.report.share_picture import ShareRow, share_picture
from flexrlhf.report.svg import number, words_inside
from flexrlhf.report.timeline_picture import timeline_picture

_SVG = "{http://www.w3.org/2000/svg}"


def drawn(text):
    return ElementTree.fromstring(text)


def boxes(root, fill):
    """Left edge and width of what has a colour, the marks of the legend left out."""
    return [
        (float(node.get("x")), float(node.get("width")))
        for node in root.iter(f"{_SVG}rect")
        if node.get("fill") == fill and node.get("width") != "12"
    ]


def spoken_words(root):
    return [node.text for node in root.iter(f"{_SVG}text")]


def span(name, track, stage, start_s, end_s, role=None, transfer=None):
    return Span(name, track, stage, role, start_s, end_s, 1, transfer)


@pytest.fixture
def timeline():
    spans = [
        span("generate/0", "device 0", "generate", 10.0, 14.0, "shadow_actor"),
        span("rewards/0", "device 0", "score", 14.0, 15.0, "reward"),
        span("rewards/0", "device 0", "score", 15.0, 16.0, "reward"),
        span("rewards/1", "device 0", "score", 17.0, 18.0, "reward"),
        span("elsewhere", "device 9", "train", 0.0, 90.0),
    ]
    lanes = {"device 0": "W1"}
    return drawn(timeline_picture(spans, lanes, title="t", label=lambda s: s.name))


def test_time_runs_from_the_first_start_of_the_lanes_shown(timeline):
    ((x, width),) = boxes(timeline, STAGE_COLOURS["generate"])
    scores = boxes(timeline, STAGE_COLOURS["score"])
    assert [x for x, _ in scores] == pytest.approx([x + width, x + width * 7 / 4], abs=0.2)


def test_spans_of_one_label_without_a_pause_are_one_box(timeline):
    (generated,) = boxes(timeline, STAGE_COLOURS["generate"])
    first, second = boxes(timeline, STAGE_COLOURS["score"])
    assert first[1] == pytest.approx(generated[1] / 2, abs=0.2)
    assert second[1] == pytest.approx(generated[1] / 4, abs=0.2)
    assert spoken_words(timeline).count("rewards/0") == 1


def test_work_of_a_shadow_is_hatched(timeline):
    ((x, width),) = boxes(timeline, STAGE_COLOURS["generate"])
    assert boxes(timeline, "url(#hatch)") == [(x, width)]
    assert "work of a shadow" in spoken_words(timeline)
    assert "data moves" not in spoken_words(timeline)


def test_shares_lie_behind_each_other_and_what_is_missing_stays_free():
    rows = [ShareRow("ours", {"generate": 0.5, "train": 0.25})]
    root = drawn(share_picture(rows, STAGE_COLOURS, title="t"))
    ((start, half),) = boxes(root, STAGE_COLOURS["generate"])
    ((then, quarter),) = boxes(root, STAGE_COLOURS["train"])
    assert then == pytest.approx(start + half, abs=0.2)
    assert quarter == pytest.approx(half / 2, abs=0.2)
    assert {"50.0 %", "25.0 %", "ours"} <= set(spoken_words(root))
    assert "score" not in spoken_words(root)


def test_roles_lie_on_their_devices_and_new_weights_go_to_the_shadow():
    cluster = Cluster.uniform("A100-80G", nodes=1, devices_per_node=4)
    plan = Plan(
        rank=1,
        strategy="custom",
        feasible=True,
        why="asked",
        placement={
            "actor": RolePlacement((0, 1, 2), data_parallel=3),
            "shadow_actor": RolePlacement((3,)),
        },
    )
    names = {device: f"W{device + 1}" for device in cluster.devices}
    root = drawn(layout_picture(plan, cluster, title="t", names=names))
    ((left, width),) = boxes(root, ROLE_COLOURS["actor"])
    ((shadow, narrow),) = boxes(root, ROLE_COLOURS["shadow_actor"])
    assert shadow == pytest.approx(left + width + 6, abs=0.3)
    assert width + 6 == pytest.approx(3 * (narrow + 6), abs=0.5)
    dashed = [r.get("fill") for r in root.iter(f"{_SVG}rect") if r.get("stroke-dasharray")]
    assert dashed == [ROLE_COLOURS["shadow_actor"]]
    (head,) = root.iter(f"{_SVG}polygon")
    point = float(head.get("points").split()[-1].split(",")[0])
    assert point == pytest.approx(shadow + narrow / 2, abs=0.2)


def test_words_that_do_not_fit_are_left_out():
    assert "reward" in words_inside("reward", 0, 0, 60, 20)
    assert not words_inside("reward", 0, 0, 20, 20)


@pytest.mark.parametrize(("value", "text"), [(1.04, "1"), (2.06, "2.1"), (0.0, "0"), (840, "840")])
def test_lengths_have_one_decimal(value, text):
    assert number(value) == text
