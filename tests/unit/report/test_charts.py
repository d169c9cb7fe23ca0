from __future__ import annotations

import math

import plotly.graph_objects as go
import pytest

from flexrlhf.report.charts import (
    Line,
    band_traces,
    bar_size,
    line_figure,
    moving_window,
    stacked_figure,
    threshold_trace,
)
from flexrlhf.report.learning_charts import learning_charts, other_charts
from flexrlhf.report.resource_charts import resource_charts
from flexrlhf.report.run_folder import read_run
from flexrlhf.report.series import Series, grouped_mean, keys_under, moving_mean, series


def titles(charts):
    return [chart.title for chart in charts]


def chart(charts, title):
    (found,) = (chart for chart in charts if chart.title == title)
    return found


def test_a_series_has_the_iterations_that_have_the_key():
    metrics = [
        {"iteration": 1, "a": 1.0},
        {"iteration": 2},
        {"iteration": 3, "a": math.nan},
        {"iteration": 4, "a": 2.5},
    ]
    assert series(metrics, "a", scale=100.0) == Series("a", (1, 4), (100.0, 250.0))
    assert series(metrics, "b") is None


def test_keys_under_a_prefix_keep_their_order():
    metrics = [{"iteration": 1, "eval/b": 0.0}, {"iteration": 2, "eval/a": 0.0, "eval/b": 0.0}]
    assert keys_under(metrics, "eval/") == ["eval/b", "eval/a"]
    assert keys_under(metrics, "eval/", without=["eval/b"]) == ["eval/a"]


def test_a_moving_mean_has_fewer_values_at_the_ends():
    assert moving_mean([1.0, 2.0, 6.0, 4.0], 3) == [1.5, 3.0, 4.0, 5.0]
    assert moving_mean([1.0, 2.0], 1) == [1.0, 2.0]


def test_many_iterations_share_a_bar():
    long = Series("a", tuple(range(1, 162)), (1.0, 2.0, 6.0) * 53 + (1.0, 5.0))
    assert bar_size(80) == 1
    assert bar_size(161) == 3
    assert grouped_mean(long, 3).values == (3.0,) * 54
    (bars,) = stacked_figure([Line(long, "a", "#102030")])["data"]
    assert bars["x"][:3] == [1, 4, 7]


def test_a_single_part_of_the_reward_is_not_drawn_twice(runs):
    more = {"reward/model": 1.0, "eval/reward": 0.5, "eval/reward_model": 0.5}
    record = read_run(runs.write("one", metrics=[runs.line(1, **more)]))
    found = titles(learning_charts(record))
    assert "Evaluation: reward" in found
    assert "Evaluation: reward model" not in found
    assert "Reward by part" not in found


def test_only_a_long_noisy_line_gets_a_moving_mean():
    long = Series("a", tuple(range(100)), tuple(float(i % 2) for i in range(100)))
    assert moving_window(40) == 1
    assert moving_window(100) == 7
    raw, smooth = line_figure([Line(long, "a", "#102030")])["data"]
    assert raw["y"][:2] == [0.0, 1.0]
    assert smooth["y"][50] == pytest.approx(4 / 7, rel=1e-5)
    assert len(line_figure([Line(long, "a", "#102030", is_noisy=False)])["data"]) == 1


def test_the_band_goes_out_above_and_comes_back_below():
    (band,) = band_traces(
        Series("mean", (1, 2, 3), (1.0, 2.0, 3.0)), Series("std", (1, 3), (0.5, 0.25)), "#102030"
    )
    assert band["x"] == [1, 3, 3, 1]
    assert band["y"] == [1.5, 3.25, 2.75, 0.5]


def test_only_what_a_run_measured_is_drawn(runs):
    lines = [{"iteration": i, "loss/supervised": 1.0, "grad_norm": 0.5} for i in (1, 2)]
    record = read_run(runs.write("sft", metrics=lines))
    assert titles(learning_charts(record)) == ["Supervised loss", "Gradient norm"]
    assert resource_charts(record.metrics) == []
    assert other_charts(record) == []


def test_a_ppo_run_shows_reward_and_kl_first(runs):
    found = titles(learning_charts(read_run(runs.write("ppo"))))
    assert found == [
        "Reward",
        "KL to the reference",
        "Policy loss",
        "Value loss",
        "Engine against trainer",
    ]


def test_parts_of_reward_evaluations_and_roles_have_lines_of_their_own(runs):
    more = {"reward/model": 1.0, "reward/length": 2.0, "eval/win_rate": 0.5}
    more |= {"grad_norm": 1.0, "critic/grad_norm": 2.0}
    charts = learning_charts(read_run(runs.write("ppo", metrics=[runs.line(1, **more)])))
    names = [trace["name"] for trace in chart(charts, "Reward by part").figure["data"]]
    assert names == ["model", "length"]
    assert chart(charts, "Evaluation: win rate").figure["data"][0]["y"] == [0.5]
    names = [trace["name"] for trace in chart(charts, "Gradient norm").figure["data"]]
    assert names == ["actor", "critic"]


def test_the_alarm_of_the_config_is_drawn_at_the_gap(runs):
    charts = learning_charts(read_run(runs.write("ppo")))
    figure = chart(charts, "Engine against trainer").figure
    assert figure["data"][1]["y"] == [1e-4, 1e-4]
    assert figure["layout"]["yaxis"]["type"] == "log"


def test_staleness_is_drawn_only_where_answers_were_stale(runs):
    still = [runs.line(1, **{"staleness/mean": 0.0, "staleness/max": 0})]
    assert "Staleness" not in titles(learning_charts(read_run(runs.write("a", metrics=still))))
    stale = [runs.line(1, **{"staleness/mean": 0.5, "staleness/max": 1})]
    assert "Staleness" in titles(learning_charts(read_run(runs.write("b", metrics=stale))))


def test_a_small_constant_is_not_drawn_as_zero(runs):
    lines = [runs.line(i, learning_rate=1e-5) for i in (1, 2)]
    charts = learning_charts(read_run(runs.write("ppo", metrics=lines)))
    assert chart(charts, "Learning rate").figure["layout"]["yaxis"] == {"range": [0.0, 2e-5]}


def test_a_coefficient_is_drawn_where_it_adapts(runs):
    fixed = [runs.line(i, **{"kl/coefficient": 0.05}) for i in (1, 2)]
    assert "KL coefficient" not in titles(learning_charts(read_run(runs.write("f", metrics=fixed))))
    moving = [runs.line(i, **{"kl/coefficient": 0.05 * i}) for i in (1, 2)]
    assert "KL coefficient" in titles(learning_charts(read_run(runs.write("m", metrics=moving))))


def test_a_metric_that_no_chart_knows_is_drawn_apart(runs):
    lines = [runs.line(1, **{"my/metric": 3.0, "critic/learning_rate": 1.0})]
    (other,) = other_charts(read_run(runs.write("ppo", metrics=lines)))
    assert other.title == "my/metric"


def test_time_that_no_stage_has_is_other(runs):
    time = chart(resource_charts([runs.line(1)]), "Time per stage")
    bars = {trace["name"]: trace["y"] for trace in time.figure["data"]}
    assert bars == {
        "generate": [1.0],
        "score": [0.25],
        "train": [0.5],
        "sync": [0.0],
        "other": [0.25],
    }


def test_stages_that_overlap_leave_no_negative_rest(runs):
    line = runs.line(1, **{"time/iteration_s": 1.5})
    bars = chart(resource_charts([line]), "Time per stage").figure["data"]
    assert bars[-1]["name"] == "other"
    assert bars[-1]["y"] == [0.0]


def test_shares_are_percent_and_leave_out_what_never_occurs(runs):
    shares = chart(resource_charts([runs.line(1)]), "Where the time goes")
    bars = {trace["name"]: trace["y"] for trace in shares.figure["data"]}
    assert bars == {"generate": [50.0], "bubble": [50.0]}


def test_percentages_stand_between_nothing_and_all(runs):
    charts = resource_charts([runs.line(1, **{"utilization/mean": 0.9})])
    busy = chart(charts, "Utilisation")
    assert busy.figure["data"][0]["y"] == [90.0]
    assert busy.figure["layout"]["yaxis"]["range"] == [0, 104]


def test_memory_has_the_unit_that_suits(runs):
    memory = chart(resource_charts([runs.line(1)]), "Peak memory")
    assert memory.unit == "GiB"
    assert memory.figure["data"][0]["y"] == [3.0]


def test_plotly_accepts_every_figure(runs):
    many = {
        "reward/model": 1.0,
        "reward/rule": 1.0,
        "eval/reward": 0.5,
        "my/metric": 1.0,
        "staleness/max": 2,
    }
    lines = [runs.line(i, **many) for i in range(1, 60)]
    record = read_run(runs.write("ppo", metrics=lines))
    charts = learning_charts(record) + other_charts(record) + resource_charts(record.metrics)
    for drawn in charts:
        go.Figure(drawn.figure)
    two = Series("a", (1, 2), (1.0, 2.0))
    go.Figure(stacked_figure([Line(two, "a", "#102030")]))
    go.Figure({"data": [threshold_trace(1.0, "alarm", two, "#102030")]})
