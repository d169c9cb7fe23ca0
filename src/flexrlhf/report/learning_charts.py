"""Charts of how the policy learns: reward, KL, losses and what warns of trouble."""

from __future__ import annotations

from dataclasses import dataclass

from flexrlhf.report.charts import Chart, Figure, Line, band_traces, line_figure, threshold_trace
from flexrlhf.report.colours import ALARM_COLOUR, MAIN_COLOUR, ROLE_COLOURS, SERIES_COLOURS
from flexrlhf.report.headline import evaluation_title
from flexrlhf.report.run_folder import RunRecord, setting
from flexrlhf.report.series import Metrics, evaluation_keys, keys_under, series


@dataclass(frozen=True, slots=True)
class _Plain:
    """A chart of one metric, and of the metrics under it (`grad_norm/critic`)."""

    key: str
    title: str
    unit: str
    caption: str
    colour: str = MAIN_COLOUR
    scale: float = 1.0
    is_noisy: bool = True


_KL_CHART = _Plain(
    "kl/mean",
    "KL to the reference",
    "nats per token",
    "Distance from the starting policy; a steep climb often means that the reward is gamed.",
)
_PLAIN_CHARTS = (
    _Plain(
        "loss/policy",
        "Policy loss",
        "",
        "Clipped surrogate; its level means little, a jump means trouble.",
        ROLE_COLOURS["actor"],
    ),
    _Plain(
        "loss/value",
        "Value loss",
        "",
        "Error of the critic; it should fall while the critic learns to foresee the reward.",
        ROLE_COLOURS["critic"],
    ),
    _Plain(
        "loss/kl",
        "KL loss",
        "",
        "The KL term that is added to the policy loss.",
        ROLE_COLOURS["reference"],
    ),
    _Plain(
        "kl/coefficient",
        "KL coefficient",
        "",
        "What a nat of KL costs; an adaptive one follows its target.",
        ROLE_COLOURS["reference"],
        is_noisy=False,
    ),
    _Plain(
        "loss/preference",
        "Preference loss",
        "nats",
        "ln 2 ≈ 0.693 is guessing; lower means chosen answers score above rejected ones.",
        ROLE_COLOURS["reward"],
    ),
    _Plain(
        "accuracy/preference",
        "Preference accuracy",
        "%",
        "Pairs of the batch whose chosen answer scores above the rejected one.",
        ROLE_COLOURS["reward"],
        scale=100.0,
    ),
    _Plain(
        "loss/supervised",
        "Supervised loss",
        "nats per token",
        "Cross-entropy of the answer tokens.",
        ROLE_COLOURS["actor"],
    ),
    _Plain(
        "ratio/clip_fraction",
        "Clipped tokens",
        "%",
        "Tokens whose policy ratio left the clip range; far above 20 % the step is too large.",
        scale=100.0,
    ),
    _Plain(
        "entropy/mean",
        "Entropy",
        "nats per token",
        "How undecided the policy is; a fall to zero ends exploration.",
    ),
    _Plain(
        "response_tokens/mean",
        "Response length",
        "tokens",
        "A steady climb can mean that length itself is rewarded.",
    ),
    _Plain("grad_norm", "Gradient norm", "", "Before clipping."),
    _Plain("learning_rate", "Learning rate", "", "As the schedule set it.", is_noisy=False),
)

_COVERED = {plain.key for plain in (_KL_CHART, *_PLAIN_CHARTS)} | {"iteration", "samples", "tokens"}
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
    "grad_norm/",
    "learning_rate/",
)


def learning_charts(record: RunRecord) -> list[Chart]:
    """Returns the charts whose metrics this run has, the most telling first."""
    metrics = record.metrics
    charts = [_reward_chart(metrics), _plain_chart(metrics, _KL_CHART)]
    charts += [_reward_parts_chart(metrics)]
    charts += [_evaluation_chart(metrics, key) for key in evaluation_keys(metrics)]
    charts += [_plain_chart(metrics, plain) for plain in _PLAIN_CHARTS]
    charts += [_gap_chart(record), _staleness_chart(metrics)]
    return [chart for chart in charts if chart is not None]


def other_charts(record: RunRecord) -> list[Chart]:
    """Returns a chart for each metric that no other chart shows."""
    keys = keys_under(record.metrics, "", without=_COVERED)
    charts = (
        _plain_chart(record.metrics, _Plain(key, key, "", "", SERIES_COLOURS[5]))
        for key in sorted(keys)
        if not key.startswith(_COVERED_PREFIXES)
    )
    return [chart for chart in charts if chart is not None]


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
    figure = _family_figure(metrics, keys, "reward/")
    return Chart("Reward by part", "", "Each reward function or model on its own.", figure)


def _evaluation_chart(metrics: Metrics, key: str) -> Chart | None:
    caption = "On rows held out of training."
    plain = _Plain(key, evaluation_title(key), "", caption, SERIES_COLOURS[3], is_noisy=False)
    return _plain_chart(metrics, plain)


def _plain_chart(metrics: Metrics, plain: _Plain) -> Chart | None:
    line = series(metrics, plain.key, scale=plain.scale)
    family = keys_under(metrics, f"{plain.key}/")
    if line is None and not family:
        return None
    if family:
        keys = [plain.key, *family] if line else family
        figure = _family_figure(metrics, keys, f"{plain.key}/", is_noisy=plain.is_noisy)
    else:
        assert line is not None
        drawn = Line(line, plain.title, plain.colour, is_noisy=plain.is_noisy)
        figure = line_figure([drawn], unit=plain.unit)
    return Chart(plain.title, plain.unit, plain.caption, figure)


def _family_figure(
    metrics: Metrics, keys: list[str], prefix: str, *, is_noisy: bool = True
) -> Figure:
    """Lines of several keys; a role among them has its own colour."""
    lines: list[Line] = []
    roles: dict[str, str] = {str(role): colour for role, colour in ROLE_COLOURS.items()}
    for index, key in enumerate(keys):
        found = series(metrics, key)
        if found is not None:
            label = key.removeprefix(prefix)
            colour = roles.get(label, SERIES_COLOURS[index % len(SERIES_COLOURS)])
            lines.append(Line(found, label, colour, is_noisy))
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
    keys = ["staleness/mean", "staleness/max"]
    if not any(line.get(key) for line in metrics for key in keys):
        return None
    caption = "Weight versions between the sampling of an answer and training on it."
    figure = _family_figure(metrics, keys, "staleness/")
    return Chart("Staleness", "versions", caption, figure)
