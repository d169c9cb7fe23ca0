"""The body of the plan page for one stage: why this plan, where its roles sit, what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flexrlhf.core.timeline import Timeline
from flexrlhf.planning.placement.prediction import Prediction
from flexrlhf.planning.search.stage_plans import StagePlans
from flexrlhf.planning.search.winner import KindMemory, Winner, winner_of
from flexrlhf.report.charts import Figure
from flexrlhf.report.formats import (
    format_bytes,
    format_number,
    format_ranges,
    format_seconds,
)
from flexrlhf.report.markup import Html, element, join
from flexrlhf.report.placement_picture import placement_picture
from flexrlhf.report.plan_memory_chart import memory_figure, use_colour, uses_of
from flexrlhf.report.plan_request_view import cluster_view, request_view
from flexrlhf.report.plan_tables import (
    gains_table,
    legend,
    ranking_table,
    role_table,
    share_strip,
    time_table,
)
from flexrlhf.report.timeline_chart import timeline_figure


def plan_view(stage: StagePlans, figures: dict[str, Figure], *, prefix: str = "") -> Html:
    """Returns the body for one stage.

    Args:
        stage: what was asked and the plans that answer it.
        figures: filled with the figures that the body refers to, by their id.
        prefix: in front of each figure's id, so that stages on one page do not collide.

    Raises:
        PlanError: nothing fits.
    """
    winner = winner_of(stage.request, stage.ranked)
    predicted = winner.plan.predicted
    assert predicted is not None, "what fits was simulated"
    return join(
        [
            _section("What was asked", request_view(stage.request)),
            _section("The machines", cluster_view(stage.request.cluster)),
            _section(f"The plan: {winner.plan.strategy}", _verdict(stage, winner, predicted)),
            _section("Where each role sits", _placement(stage, winner)),
            _section("Where the time goes", _time(predicted)),
            _section("What more would give", _gains(winner)),
            _section("One iteration", _timeline(winner, figures, f"{prefix}timeline")),
            _section("Memory", _memory(winner, figures, f"{prefix}memory")),
            _section("All plans", _ranking(stage)),
        ]
    )


def _section(title: str, *content: Html) -> Html:
    return element("section", element("h2", title), *content)


def _quiet(words: str) -> Html:
    return element("p", words, class_="quiet")


def _verdict(stage: StagePlans, winner: Winner, predicted: Prediction) -> Html:
    cards = (
        element(
            "div",
            element("div", label, class_="label"),
            element("div", value, class_="value"),
            element("div", remark, class_="quiet"),
            class_="card",
        )
        for label, value, remark in _cards(stage, winner, predicted)
    )
    return join([element("p", winner.plan.why), element("div", *cards, class_="cards")])


def _cards(
    stage: StagePlans, winner: Winner, predicted: Prediction
) -> Iterator[tuple[str, str, str]]:
    slow = f"99 of 100 within {format_seconds(winner.p99_iteration_s)}"
    yield "Iteration", format_seconds(predicted.iteration_s), slow
    yield "Samples per second", format_number(predicted.samples_per_s), ""
    tightest = max(winner.memory, key=lambda kind: _peak(kind) / kind.limit_bytes)
    limit = f"of {format_bytes(tightest.limit_bytes)} that may be filled"
    yield "Fullest device", format_bytes(_peak(tightest)), limit
    yield "Idle", f"{100 * predicted.shares.get('bubble', 0.0):.1f} %", "of all devices' time"
    cost = predicted.cost_per_1k_samples
    if cost is not None:
        yield "1 000 samples", f"{format_number(cost)} USD", "at the catalogue's prices"
    if stage.switch_s is not None:
        yield "Going to it", format_seconds(stage.switch_s), "from the stage before, simulated"
    yield "Bound by", winner.gains.bound_by, "the thing of which more helps most"


def _placement(stage: StagePlans, winner: Winner) -> Html:
    words = "A column is a device, a bar a role on it."
    if any(role.startswith("shadow") for role in winner.plan.placement):
        words += " A dashed bar is a copy that gets its weights from the trained role."
    if (parts := winner.plan.rollout_micro_batches or 1) > 1:
        words += f" A rollout is generated and scored in {parts} parts."
    if (every := winner.plan.sync_every or 1) > 1:
        words += f" The copies get new weights every {every} iterations."
    picture = placement_picture(winner.plan, stage.request.cluster)
    return join([_quiet(words), picture, role_table(winner.plan)])


def _time(predicted: Prediction) -> Html:
    words = (
        "Stages may overlap, so their times from start to end can add up to more than an "
        "iteration; the shares of the devices' time add up to all of it."
    )
    return join([_quiet(words), share_strip(predicted), time_table(predicted)])


def _gains(winner: Winner) -> Html:
    words = "The same plan on changed machines; × 1.00 says that more of it would not help."
    if winner.another_node:
        words += " With a node more its strategy is planned anew for the same batch."
    return join([_quiet(words), gains_table(winner.gains, winner.another_node)])


def _timeline(winner: Winner, figures: dict[str, Figure], name: str) -> Html:
    timeline = _steady(winner)
    figures[name] = timeline_figure({"simulated": timeline}, winner.iteration)
    words = (
        "Simulated. A lane is a group of devices that work together, with their numbers; hatched: "
        "data moves."
    )
    if any(span.attributes["iteration"] != winner.iteration for span in timeline.spans):
        words += (
            " Iterations overlap: what the devices do for others meanwhile is drawn too, so one "
            "takes longer than the time between two."
        )
    plot = element("div", class_="plot timeline", data_figure=name)
    return join([_quiet(words), element("figure", plot, class_="chart")])


def _steady(winner: Winner) -> Timeline:
    """An iteration and what starts beside it, with the devices of each group in its lane's name."""
    names = {
        group.name: f"{group.name} · {format_ranges(group.devices)}" for group in winner.groups
    }
    start_s, end_s = winner.timeline.window(winner.iteration)
    spans = (
        replace(
            span,
            track=names[span.track],
            iteration=winner.iteration,
            attributes={**span.attributes, "iteration": span.iteration},
        )
        for span in winner.timeline.spans
        if span.iteration == winner.iteration or start_s <= span.start_s < end_s
    )
    return Timeline(names.values(), spans)


def _memory(winner: Winner, figures: dict[str, Figure], name: str) -> Html:
    charts: list[Html] = []
    for number, kind in enumerate(winner.memory):
        figure_id = f"{name}-{number}"
        figures[figure_id] = memory_figure(kind)
        title = f"devices {format_ranges(kind.devices)}"
        what = f"{len(kind.devices)} × {kind.device_type}: {', '.join(kind.roles)}"
        charts.append(
            element(
                "figure",
                element("figcaption", element("h3", title), _quiet(what)),
                element("div", class_="plot", data_figure=figure_id),
                class_="chart",
            )
        )
    words = (
        "Bytes on each device while a stage is at work, for the hungriest of its roles. "
        "Dashed: what a plan may fill; solid: all memory."
    )
    entries = [(use, use_colour(use)) for use in uses_of(winner.memory)]
    return join([_quiet(words), legend(entries), element("div", *charts, class_="charts pairs")])


def _ranking(stage: StagePlans) -> Html:
    search = stage.ranked.search
    words = (
        f"The best of each strategy out of {format_number(search['candidates'])} candidates; "
        f"{format_number(search['simulated'])} were simulated, the others cannot be better by a "
        f"bound. The search took {format_seconds(search['seconds'])}."
    )
    return join([_quiet(words), ranking_table(stage.ranked.plans)])


def _peak(kind: KindMemory) -> float:
    return max(need.total for need in kind.needs.values())
