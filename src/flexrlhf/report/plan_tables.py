"""Tables of a plan: ranks with reasons, where its time goes, what bounds it, and its roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from flexrlhf.core.timeline import SHARES, Share
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.placement.prediction import Prediction
from flexrlhf.planning.search.sensitivity import Gains
from flexrlhf.report.colours import REST_COLOUR, SERIES_COLOURS, stage_colour
from flexrlhf.report.formats import (
    format_bytes,
    format_number,
    format_ranges,
    format_seconds,
    format_value,
)
from flexrlhf.report.markup import Html, element, join, table

_SHARE_WORDS: Final[Mapping[Share, str]] = {
    "generate": "generation",
    "score": "scoring",
    "train": "training",
    "sync": "weight sync",
    "communication": "waiting for data",
    "bubble": "idle",
}
_TWICE: Final = 2.0
_BOUNDS: Final = "what bounds this plan"
_MORE: Final[tuple[tuple[str, str], ...]] = (
    ("compute", "devices twice as fast"),
    ("memory", "twice the memory"),
    ("communication", "links twice as fast"),
    ("scheduling", "no device ever idle"),
)


def ranking_table(plans: Sequence[Plan]) -> Html:
    """Returns every plan, the best first; the reason for its place stands below each."""
    header = ("rank", "strategy", "s/iteration", "to the best", "samples/s", "idle", "peak memory")
    header += ("USD/1k samples", "bound by")
    best = plans[0].predicted
    head = element("tr", *(element("th", cell, scope="col") for cell in header))
    rows = (
        row
        for plan in plans
        for row in (
            element("tr", *(element("td", cell) for cell in _numbers(plan, best))),
            element("tr", _reason(plan, len(header)), class_="why"),
        )
    )
    inner = element("table", element("thead", head), element("tbody", *rows), class_="ranking")
    return element("div", inner, class_="table-box")


def time_table(predicted: Prediction) -> Html:
    """Returns stages and shares; the shares add up to the whole iteration."""
    header = ("what", "from start to end", "on average per device", "share", "")
    rows = [
        (
            _SHARE_WORDS[share],
            _stage_seconds(predicted, share),
            format_seconds(part * predicted.iteration_s),
            _percent(part),
            _bar(part, share_colour(share)),
        )
        for share in SHARES
        if (part := predicted.shares.get(share, 0.0)) >= 5e-5 or share in predicted.stage_s
    ]
    whole = sum(predicted.shares.values())
    total = (
        element("b", "an iteration"),
        element("b", format_seconds(predicted.iteration_s)),
        element("b", format_seconds(whole * predicted.iteration_s)),
        element("b", _percent(whole)),
        "",
    )
    return table(header, [*rows, total], class_="times")


def share_strip(predicted: Prediction) -> Html:
    """Returns the shares as one strip."""
    parts = (
        element(
            "div",
            _percent(part) if part >= 0.06 else "",
            style=f"flex-grow: {part:.5f}; background: {share_colour(share)}",
            title=f"{_SHARE_WORDS[share]} {_percent(part)}",
        )
        for share, part in predicted.shares.items()
        if part > 0
    )
    return element("div", *parts, class_="strip")


def gains_table(gains: Gains, another_node: Mapping[str, float]) -> Html:
    """Returns by what factor iterations would be faster with more of one thing."""
    rows = [
        (words, *_gain(getattr(gains, name)), _BOUNDS if name == gains.bound_by else "")
        for name, words in _MORE
    ]
    for pool, gain in another_node.items():
        where = f" in {pool}" if len(another_node) > 1 else ""
        rows.append((f"one more node{where}", *_gain(gain), ""))
    return table(("with", "iterations faster", "", ""), rows, class_="times")


def _gain(factor: float) -> tuple[str, Html]:
    return f"× {factor:.2f}", _bar(min(1.0, factor / _TWICE), stage_colour("train"))


def role_table(plan: Plan) -> Html:
    """Returns where each role sits and how it is split."""
    header = (
        *("role", "devices", "tensor", "pipeline", "replicas", "ZeRO", "offload"),
        *("samples per pass", "generates", "copies"),
    )
    copies = plan.predicted.copies if plan.predicted else {}
    rows = [
        (
            role,
            format_ranges(placed.devices),
            str(placed.tensor_parallel),
            str(placed.pipeline_parallel),
            str(placed.data_parallel),
            _sharding(placed),
            format_value(placed.offload),
            format_value(placed.micro_batch_samples),
            _generation(placed),
            format_value(copies.get(role)),
        )
        for role, placed in plan.placement.items()
    ]
    return table(header, rows)


def share_colour(share: str) -> str:
    """Returns the colour of a share of the devices' time."""
    return {"communication": SERIES_COLOURS[3], "bubble": REST_COLOUR}.get(
        share, stage_colour(share)
    )


def _numbers(plan: Plan, best: Prediction | None) -> list[str]:
    rank = format_value(plan.rank)
    predicted = plan.predicted
    if predicted is None or best is None:
        return [rank, plan.strategy, *("–",) * 7]
    peak = max(max(stages.values()) for stages in predicted.peak_bytes.values())
    cost = predicted.cost_per_1k_samples
    return [
        rank,
        plan.strategy,
        format_number(predicted.iteration_s),
        f"× {predicted.iteration_s / best.iteration_s:.2f}",
        format_number(predicted.samples_per_s),
        _percent(predicted.shares.get("bubble", 0.0)),
        format_bytes(peak),
        "–" if cost is None else format_number(cost),
        plan.bound_by or "–",
    ]


def _reason(plan: Plan, num_columns: int) -> Html:
    words = element("td", plan.why, colspan=str(num_columns - 1))
    return join([element("td"), words])


def _stage_seconds(predicted: Prediction, share: Share) -> str:
    seconds = predicted.stage_s.get(share)
    return "" if seconds is None else format_seconds(seconds)


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _sharding(placed: RolePlacement) -> str:
    if not placed.zero_stage:
        return "–"
    blocks = f", blocks of {placed.shard_devices}" if placed.shard_devices else ""
    return f"{placed.zero_stage}{blocks}"


def _generation(placed: RolePlacement) -> str:
    if placed.generation is None:
        return "–"
    words = placed.generation.replace("_", " ")
    split = placed.generation_tensor_parallel
    return f"{words}, over {split}" if split and split > 1 else words


def _bar(part: float, colour: str) -> Html:
    width = f"width: {100 * min(1.0, part):.2f}%; background: {colour}"
    return element("div", element("div", style=width), class_="meter")


def legend(entries: Sequence[tuple[str, str]]) -> Html:
    """Returns names with their colours."""
    return element(
        "p",
        join(
            element("span", element("i", style=f"background: {colour}"), name)
            for name, colour in entries
        ),
        class_="legend",
    )
