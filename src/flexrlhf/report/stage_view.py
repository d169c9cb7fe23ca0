"""The body of the page: headline, charts, timeline, answers and tables of one stage."""

from __future__ import annotations

from collections.abc import Sequence

from flexrlhf.report.answer_view import comparison_blocks
from flexrlhf.report.charts import Chart, Figure, moving_window
from flexrlhf.report.comparison import compare_answers
from flexrlhf.report.formats import format_seconds
from flexrlhf.report.headline import headline_cards
from flexrlhf.report.learning_charts import learning_charts, other_charts
from flexrlhf.report.markup import Html, element, folded, join
from flexrlhf.report.prediction_view import prediction_table
from flexrlhf.report.resource_charts import resource_charts
from flexrlhf.report.run_folder import RunRecord
from flexrlhf.report.run_tables import (
    batch_size_table,
    environment_table,
    plan_table,
    stage_overview,
)
from flexrlhf.report.series import series
from flexrlhf.report.summary import summary_rows
from flexrlhf.report.task_table import task_table
from flexrlhf.report.timeline_chart import timeline_figures


def stage_view(record: RunRecord, figures: dict[str, Figure], *, prefix: str = "") -> Html:
    """Returns the body for one run or stage.

    Args:
        record: what to show.
        figures: filled with the figures that the body refers to, by their id.
        prefix: in front of each figure's id, so that stages on one page do not collide.
    """
    learning, resources = learning_charts(record), resource_charts(record.metrics)
    other, note = other_charts(record), _axis_note(record)
    return join(
        [
            _title(record) if not prefix else Html(""),
            _notes(record.notes),
            _cards(record),
            _section("Learning", _charts(learning, figures, f"{prefix}learning", note)),
            _section("Time and memory", _charts(resources, figures, f"{prefix}resource", note)),
            _timeline(record, figures, f"{prefix}timeline"),
            _section("Predicted and measured", prediction_table(record)),
            _section("Predicted and measured, task by task", task_table(record.timelines)),
            _answers(record, "evaluation", "Evaluation samples before and after"),
            _answers(record, "train", "Training samples before and after"),
            _section("Other metrics", _charts(other, figures, f"{prefix}other", note)),
            _section("Plan", plan_table(record.plan)),
            _section("Batch sizes in words", batch_size_table(record)),
            run_details(record, "Details"),
        ]
    )


def overview(record: RunRecord) -> Html:
    """Returns the title of a run of several stages and one row for each of them."""
    cells = [(_result(stage), _total_time(stage)) for stage in record.stages]
    return join([_title(record), _notes(record.notes), stage_overview(record.stages, cells)])


def _title(record: RunRecord) -> Html:
    command = record.environment.get("command")
    written = " ".join(map(str, command)) if isinstance(command, list) else str(command or "")
    stages = " → ".join(stage.name for stage in record.stages)
    words = " · ".join(part for part in (stages or record.algorithm, written) if part)
    return element(
        "header",
        element("div", "FlexRLHF run report", class_="brand"),
        element("h1", record.name),
        element("p", words, class_="quiet"),
        class_="title",
    )


def _notes(notes: Sequence[str]) -> Html:
    if not notes:
        return Html("")
    items = (element("li", note) for note in notes)
    return element("aside", element("ul", *items), class_="notes", role="note")


def _cards(record: RunRecord) -> Html:
    cards = (
        element(
            "div",
            element("div", card.label, class_="label"),
            element(
                "div", card.value, " ", element("span", card.unit, class_="unit"), class_="value"
            ),
            element("div", card.remark, class_="quiet"),
            class_="card",
        )
        for card in headline_cards(record)
    )
    return element("div", *cards, class_="cards")


def _section(title: str, content: Html | None) -> Html:
    return element("section", element("h2", title), content) if content else Html("")


def _charts(
    charts: Sequence[Chart], figures: dict[str, Figure], name: str, note: Html
) -> Html | None:
    if not charts:
        return None
    boxes: list[Html] = []
    for number, chart in enumerate(charts):
        figure_id = f"{name}-{number}"
        figures[figure_id] = chart.figure
        unit = element("span", chart.unit, class_="unit") if chart.unit else Html("")
        boxes.append(
            element(
                "figure",
                element("figcaption", element("h3", chart.title, " ", unit)),
                element("div", class_="plot", data_figure=figure_id),
                element("p", chart.caption, class_="quiet") if chart.caption else Html(""),
                class_="chart wide" if chart.is_wide else "chart",
            )
        )
    return join([note, element("div", *boxes, class_="charts")])


def _axis_note(record: RunRecord) -> Html:
    window = moving_window(len(record.metrics))
    words = "Over the iterations."
    if window > 1:
        words += f" A pale line is the value, the bold one its mean over {window} iterations."
    return element("p", words, class_="quiet")


def _timeline(record: RunRecord, figures: dict[str, Figure], name: str) -> Html:
    drawn = timeline_figures(record.timelines)
    if not drawn:
        return Html("")
    figures |= {f"{name}-{iteration}": figure for iteration, figure in drawn.items()}
    last = max(drawn)
    options = (
        element(
            "option",
            str(iteration),
            value=f"{name}-{iteration}",
            **({"selected": ""} if iteration == last else {}),
        )
        for iteration in drawn
    )
    choice = element("select", *options, data_plot=name, aria_label="Iteration of the timeline")
    plot = element("div", class_="plot timeline", id=name, data_figure=f"{name}-{last}")
    box = element("figure", element("label", "Iteration ", choice), plot, class_="chart")
    return _section("Timeline", box)


def _answers(record: RunRecord, kind: str, title: str) -> Html:
    compared = compare_answers(record.answers, kind)
    return _section(title, comparison_blocks(compared)) if compared else Html("")


def run_details(record: RunRecord, title: str) -> Html:
    """Returns config, environment and end of the log, folded."""
    blocks: list[Html] = []
    if record.config_text:
        blocks.append(folded("Resolved config", element("pre", record.config_text)))
    environment = environment_table(record.environment)
    if environment:
        blocks.append(folded("Environment", environment))
    if record.log_tail:
        blocks.append(folded("End of the log", element("pre", record.log_tail)))
    return _section(title, join(blocks)) if blocks else Html("")


def _result(stage: RunRecord) -> str:
    """The first figure of the summary that changed over the stage."""
    for row in summary_rows(stage):
        if row.first:
            return f"{row.label} {row.first} → {row.last}"
    return "–"


def _total_time(stage: RunRecord) -> str:
    seconds = series(stage.metrics, "time/iteration_s")
    return format_seconds(sum(seconds.values)) if seconds else "–"
