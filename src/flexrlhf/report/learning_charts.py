"""Charts of how the policy learns: reward, KL, losses and what warns of trouble."""

from __future__ import annotations

from collections.abc import Mapping

from flexrlhf.core.names import ROLES
from flexrlhf.report.charts import Chart, Figure, Line, band_traces, line_figure, threshold_trace
from flexrlhf.report.colours import ALARM_COLOUR, MAIN_COLOUR, ROLE_COLOURS, SERIES_COLOURS
from flexrlhf.report.headline import evaluation_title
from flexrlhf.report.plain_metrics import KL, PLAIN_METRICS, PlainMetric
from flexrlhf.report.run_folder import RunRecord, setting
from flexrlhf.report.series import Metrics, evaluation_keys, keys_under, series

_COVERED = {plain.key for plain in (KL, *PLAIN_METRICS)} | {"iteration", "samples", "tokens"}
_MAIN_ROLE = "actor"
"""Whose metrics have no role in their key where several roles are trained."""
_COVERED_PREFIXES = (
    "reward/",
    "eval/",
    "logprob_gap/",
    "staleness/",
    "time/",
    "share/",
    "throughput/",
    "memory/",
    "utilization/",
    "cost/",
    "weights/",
)


def learning_charts(record: RunRecord) -> list[Chart]:
    """Returns the charts whose metrics this run has, the most telling first."""
    metrics = record.metrics
    charts = [_reward_chart(metrics), _plain_chart(metrics, KL)]
    charts += [_reward_parts_chart(metrics)]
    charts += [_evaluation_chart(metrics, key) for key in evaluation_keys(metrics)]
    charts += [_plain_chart(metrics, plain) for plain in PLAIN_METRICS]
    charts += [_gap_chart(record), _staleness_chart(metrics)]
    return [chart for chart in charts if chart is not None]


def other_charts(record: RunRecord) -> list[Chart]:
    """Returns a chart for each metric that no other chart shows."""
    charts = (
        _plain_chart(record.metrics, PlainMetric(key, key, "", "", SERIES_COLOURS[5]))
        for key in sorted(keys_under(record.metrics, ""))
        if not _is_covered(key)
    )
    return [chart for chart in charts if chart is not None]


def _is_covered(key: str) -> bool:
    role, _, of_role = key.partition("/")
    is_of_role = role in ROLES and of_role in _COVERED
    return is_of_role or key in _COVERED or key.startswith(_COVERED_PREFIXES)


def _reward_chart(metrics: Metrics) -> Chart | None:
    mean, std = series(metrics, "reward/mean"), series(metrics, "reward/std")
    if mean is None:
        return None
    colour = ROLE_COLOURS["reward"]
    figure = line_figure([Line(mean, "mean", colour)])
    if std is not None:
        figure["data"] = band_traces(mean, std, colour) + figure["data"]
        figure["layout"]["showlegend"] = True
    caption = "Mean over the samples of an iteration"
    caption += ", and one standard deviation around it." if std is not None else "."
    return Chart("Reward", "", caption, figure, is_wide=True)


def _reward_parts_chart(metrics: Metrics) -> Chart | None:
    """None where one part is the whole reward."""
    keys = keys_under(metrics, "reward/", without=("reward/mean", "reward/std"))
    if len(keys) < 2:
        return None
    figure = _family_figure(metrics, {key: key.removeprefix("reward/") for key in keys})
    return Chart("Reward by part", "", "Each reward function or model on its own.", figure)


def _evaluation_chart(metrics: Metrics, key: str) -> Chart | None:
    caption = "On rows held out of training."
    plain = PlainMetric(key, evaluation_title(key), "", caption, SERIES_COLOURS[3], is_noisy=False)
    return _plain_chart(metrics, plain)


def _plain_chart(metrics: Metrics, plain: PlainMetric) -> Chart | None:
    line = series(metrics, plain.key, scale=plain.scale)
    if line is not None and plain.is_drawn_if_it_changes and len(set(line.values)) == 1:
        return None
    family = [f"{role}/{plain.key}" for role in ROLES]
    family = [key for key in family if series(metrics, key) is not None]
    if line is None and not family:
        return None
    if family:
        roles = {key: key.removesuffix(f"/{plain.key}") for key in family}
        labels = ({plain.key: _MAIN_ROLE} if line else {}) | roles
        figure = _family_figure(metrics, labels, is_noisy=plain.is_noisy)
    else:
        assert line is not None
        drawn = Line(line, plain.title, plain.colour, is_noisy=plain.is_noisy)
        figure = line_figure([drawn], unit=plain.unit)
    return Chart(plain.title, plain.unit, plain.caption, figure)


def _family_figure(metrics: Metrics, labels: Mapping[str, str], *, is_noisy: bool = True) -> Figure:
    """Lines of several keys with their labels; a role among them has its own colour."""
    colours: dict[str, str] = {str(role): colour for role, colour in ROLE_COLOURS.items()}
    lines = [
        Line(found, label, colours.get(label, SERIES_COLOURS[place % 8]), is_noisy)
        for place, (key, label) in enumerate(labels.items())
        if (found := series(metrics, key)) is not None
    ]
    return line_figure(lines)


def _gap_chart(record: RunRecord) -> Chart | None:
    gap = series(record.metrics, "logprob_gap/max")
    if gap is None:
        return None
    drawn = Line(gap, "largest gap", MAIN_COLOUR, is_noisy=False)
    figure = line_figure([drawn], unit="nats", is_log=min(gap.values) > 0)
    alarm = setting(record.config, "rollout.gap_alarm")
    if isinstance(alarm, float):
        figure["data"].append(threshold_trace(alarm, "alarm", gap, ALARM_COLOUR))
        figure["layout"]["showlegend"] = True
    caption = "Largest difference per token between the engine's and the trainer's log-probs."
    return Chart("Engine against trainer", "nats", caption, figure)


def _staleness_chart(metrics: Metrics) -> Chart | None:
    """None for a synchronous run, whose answers are never stale."""
    labels = {"staleness/mean": "mean", "staleness/max": "max"}
    if not any(line.get(key) for line in metrics for key in labels):
        return None
    caption = "Weight versions between the sampling of an answer and training on it."
    figure = _family_figure(metrics, labels)
    return Chart("Staleness", "versions", caption, figure)
