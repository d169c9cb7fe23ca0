"""The plan page: placements as pictures, memory by use, and every plan with its reason."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.search.stage_plans import StagePlans, stage_plans
from flexrlhf.planning.search.winner import winner_of
from flexrlhf.report.placement_board import Run, boards_of, runs_of
from flexrlhf.report.placement_picture import degrees_in_words, placement_picture
from flexrlhf.report.plan_memory_chart import memory_figure, uses_of
from flexrlhf.report.plan_page import plan_page
from flexrlhf.report.plan_tables import ranking_table, time_table


@cache
def planned(strategy: str, max_staleness: int = 0) -> StagePlans:
    """PPO with small models on two nodes of two devices."""
    config = build_config(
        {
            "algorithm": {"name": "ppo"},
            "model": {"actor": {"shape": "smollm2-135m"}, "reward": {"shape": "smollm2-135m"}},
            "data": {"max_prompt_tokens": 64},
            "rollout": {"max_new_tokens": 64},
            "training": {"prompts_per_iteration": 64},
            "cluster": {
                "nodes": [{"pool": "all", "count": 2, "devices": 2, "type": "A100-80G"}],
                "links": {"inside_pool": "InfiniBand-200G"},
            },
            "placement": {"strategy": strategy},
            "weights": {"max_staleness": max_staleness},
        }
    )
    (stage,) = stage_plans(resolve(config))
    return stage


def split_plan(num_trained: int, num_devices: int) -> Plan:
    """An actor on the first devices, and a shadow that generates on the others."""
    trained, rest = range(num_trained), range(num_trained, num_devices)
    return Plan(
        rank=1,
        strategy="disaggregated",
        feasible=True,
        why="<because>",
        placement={
            "actor": RolePlacement(tuple(trained), data_parallel=num_trained, zero_stage=3),
            "shadow_actor": RolePlacement(tuple(rest), tensor_parallel=num_devices - num_trained),
        },
    )


def test_nodes_that_are_alike_are_drawn_once():
    cluster = Cluster.uniform("H100-80G", nodes=128, devices_per_node=8)
    boards = boards_of(split_plan(512, 1024), cluster)
    assert [len(board.nodes) for board in boards] == [64, 64]
    assert [[slot.count for slot in board.slots] for board in boards] == [[1] * 8] * 2
    assert runs_of("actor", boards) == [Run(0, 8)]
    assert runs_of("shadow_actor", boards) == [Run(9, 17)]  # a column stays free between nodes


def test_a_node_that_holds_both_parts_is_drawn_apart():
    boards = boards_of(split_plan(3, 6), Cluster.uniform("H100-80G", nodes=3, devices_per_node=2))
    assert [[node.index for node in board.nodes] for board in boards] == [[0], [1], [2]]
    assert runs_of("actor", boards) == [Run(0, 2), Run(3, 4)]
    assert runs_of("shadow_actor", boards) == [Run(4, 5), Run(6, 8)]


def test_many_devices_that_are_alike_are_one_with_a_count():
    cluster = Cluster.uniform("H100-80G", nodes=1, devices_per_node=40)
    (board,) = boards_of(split_plan(30, 40), cluster)
    assert [(slot.first, slot.count) for slot in board.slots] == [(0, 30), (30, 10)]


def test_shadows_are_dashed_and_get_an_arrow():
    cluster = Cluster.uniform("H100-80G", nodes=1, devices_per_node=4)
    picture = placement_picture(split_plan(2, 4), cluster)
    assert picture.count('class="bar shadow"') == 1
    assert picture.count('class="arrow right"') == 1
    assert "2 replicas · ZeRO 3" in picture
    assert "disaggregated: actor on devices 0-1, shadow_actor on devices 2-3" in picture


@pytest.mark.parametrize(
    ("placed", "words"),
    [
        (RolePlacement((0,)), "whole"),
        (
            RolePlacement(tuple(range(8)), tensor_parallel=2, pipeline_parallel=4, offload=True),
            "2 tensor parallel · 4 stages · offloaded",
        ),
        (
            RolePlacement((0, 1, 2, 3), data_parallel=4, zero_stage=3, shard_devices=2),
            "4 replicas · ZeRO 3 in blocks of 2",
        ),
    ],
)
def test_degrees_are_said_in_words(placed: RolePlacement, words: str):
    assert degrees_in_words(placed) == words


def test_memory_bars_add_up_to_what_a_stage_needs():
    stage = planned("disaggregated")
    for kind in winner_of(stage.request, stage.ranked).memory:
        figure = memory_figure(kind)
        sums: dict[str, float] = {}
        for trace in figure["data"]:
            for row, gib in zip(trace["y"], trace["x"], strict=True):
                sums[row] = sums.get(row, 0.0) + gib
        for name, need in kind.needs.items():
            row = name if need.role else "at rest"
            assert sums[row] == pytest.approx(need.total / 2**30, rel=1e-4)
        assert figure["layout"]["shapes"][0]["x0"] == pytest.approx(0.95 * 79.2, rel=0.01)
        assert {"weights", "driver and fragments"} <= set(uses_of([kind]))


def test_the_winner_agrees_with_its_json():
    stage = planned("disaggregated")
    winner = winner_of(stage.request, stage.ranked)
    assert winner.plan is stage.ranked.plans[0]
    assert winner.plan.predicted is not None
    for kind in winner.memory:
        for device in kind.devices:
            said = winner.plan.predicted.peak_bytes[device]
            assert said == {name: int(need.total) for name, need in kind.needs.items()}
    assert winner.gains.bound_by == winner.plan.bound_by


def test_shares_add_up_in_the_table():
    predicted = planned("colocated").ranked.best.predicted
    assert predicted is not None
    shares = [float(text) for text in re.findall(r"<td>([\d.]+) %</td>", time_table(predicted))]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert "100.0 %" in time_table(predicted)


def test_every_plan_stands_in_the_ranking_with_its_reason():
    plans = planned("auto").ranked.plans
    text = ranking_table(plans)
    assert text.count('class="why"') == len(plans) == 8
    assert "&lt;because&gt;" in ranking_table([split_plan(1, 2)])


@pytest.mark.parametrize("strategy", ["colocated", "disaggregated"])
def test_the_page_opens_offline_and_is_called_simulated(strategy: str):
    page = plan_page([planned(strategy)])
    assert "://" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "is simulated" in page
    assert page.count("plotly.js v") == 1
    used = set(re.findall(r'data-figure="([^"]+)"', page))
    assert used == set(figures_of(page))


def test_stages_are_tabs_with_figures_of_their_own():
    page = plan_page([planned("colocated"), planned("disaggregated")])
    assert page.count('role="tabpanel"') == 2
    used = re.findall(r'data-figure="([^"]+)"', page)
    assert len(set(used)) == len(used)
    assert set(used) == set(figures_of(page))


def figures_of(page: str) -> dict[str, Any]:
    found = re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_iterations_that_overlap_are_drawn_with_their_neighbours():
    page = plan_page([planned("disaggregated", 1)])
    assert "Iterations overlap" in page
    assert "answers may be 1 version old" in page
    assert "Iterations overlap" not in plan_page([planned("disaggregated")])
    numbers = {
        found
        for trace in figures_of(page)["timeline"]["data"]
        for text in trace["hovertext"]
        for found in re.findall(r"<br>iteration: (\d+)", text)
    }
    assert len(numbers) > 1
