"""The paper's tables, published beside simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from markdown_text import model_name, paragraph, percent, rate, table, times
from numbers_of_figures import figure_7
from published import Cell, cells

_NAMES: Final = {
    "colocated": "DeepSpeed-Chat",
    "interleaved_1": "Interleave_1",
    "interleaved_2": "Interleave_2",
    "disaggregated": "Disaggregated",
    "reward_on_one": "trlX",
}
_TABLE_2_BASE: Final = ("flex-t1-023", "flex-t1-024")
"""Table II prints these two rows of Table I once more."""
_BEFORE_AFTER: Final = (
    ("Interleave_1", "7B, 8 devices", "flex-t1-001", "flex-t1-005"),
    ("Interleave_1", "7B, 4x8", "flex-t1-021", "flex-t1-025"),
    ("Interleave_2", "65B, 2x8, ZeRO-3", "flex-t1-012", "flex-t1-020"),
    ("Disaggregated", "33B, 4x8, ZeRO-3", "flex-t1-023", "flex-t2-003"),
    ("Disaggregated", "65B, 16x8, ZeRO-3", "flex-t2-006", "flex-t2-008"),
    ("Interleaving over trlX", "7B, 8 devices, shared", "flex-t5-001", "flex-t5-002"),
    ("Interleaving over trlX", "7B, 4x8, shared", "flex-t5-005", "flex-t5-006"),
    ("Interleaving over trlX", "13B, shared", "flex-batch-003", "flex-batch-004"),
    ("Heterogeneous", "33B, 8 A100, then 8 V100 more", "flex-het-001", "flex-het-002"),
    ("Interleave_1", "7B", "flex-batch-001", "flex-batch-002"),
)
_METRICS: Final = {
    "samples_per_s": "samples/s",
    "max_batch_samples": "largest batch",
}


def throughput(number: str, extra: Iterable[str] = ()) -> list[str]:
    """Returns a table of samples/s as printed, with the simulated ones, and one of its gains.

    Args:
        number: of the table, as rows are named: t1, t2 or t5.
        extra: rows of another table that it prints as well.
    """
    found = [cell for name, cell in cells().items() if name.startswith(f"flex-{number}-")]
    found = [*(cells()[name] for name in extra), *found]
    models = list(dict.fromkeys(cell.row["actor_model"] for cell in found))
    places = list(dict.fromkeys((int(c.row["n_gpus"]), c.row["strategy"]) for c in found))
    by_place = {_place(cell): cell for cell in found}
    base = found[0].row["strategy"]
    header = ["devices", "strategy"]
    header += [f"{model_name(m)} {what}" for m in models for what in ("published", "simulated")]
    rows = (
        [
            str(devices),
            _NAMES[strategy],
            *(text for m in models for text in _pair(by_place.get((devices, strategy, m)))),
        ]
        for devices, strategy in sorted(places, key=lambda place: place[0])
    )
    gains = [
        [str(devices), _NAMES[strategy], *(_gains(by_place, devices, strategy, base, models))]
        for devices, strategy in sorted(places, key=lambda place: place[0])
        if strategy != base
    ]
    return [
        *table(header, rows),
        *paragraph(f"Over {_NAMES[base]} on as many devices:"),
        *table(header, gains),
    ]


def table_1() -> list[str]:
    """Returns Table I."""
    return throughput("t1")


def table_2() -> list[str]:
    """Returns Table II."""
    return throughput("t2", _TABLE_2_BASE)


def table_5() -> list[str]:
    """Returns Table V."""
    return throughput("t5")


def before_after() -> list[str]:
    """Returns the digest's table of section 6b."""
    header = ("optimisation", "conditions", "metric", "published before", "after", "gain")
    return table(
        (*header, "simulated before", "after", "gain"),
        [*(_before_after(*entry) for entry in _BEFORE_AFTER), _generation_before_after()],
    )


def _place(cell: Cell) -> tuple[int, str, str]:
    return int(cell.row["n_gpus"]), cell.row["strategy"], cell.row["actor_model"]


def _pair(cell: Cell | None) -> tuple[str, str]:
    if cell is None:
        return "-", "-"
    if cell.is_fit:
        return tuple("fits" if value else "OOM" for value in (cell.published, cell.simulated))  # type: ignore[return-value]
    return f"{cell.published:g}", rate(cell.simulated)


def _gains(
    by_place: Mapping[tuple[int, str, str], Cell],
    devices: int,
    strategy: str,
    base: str,
    models: Sequence[str],
) -> list[str]:
    found: list[str] = []
    for model in models:
        own, other = (by_place.get((devices, name, model)) for name in (strategy, base))
        if own is None or other is None or own.is_fit or other.is_fit:
            found += ["-", "-"]
        else:
            found += [
                times(own.published / other.published),
                times(own.simulated / other.simulated),
            ]
    return found


def _before_after(name: str, conditions: str, before: str, after: str) -> list[str]:
    first, second = cells()[before], cells()[after]
    parts: list[str] = []
    for one, two in (
        (first.published, second.published),
        (first.simulated, second.simulated),
    ):
        parts += [rate(one), rate(two), f"{times(two / one)}x"]
    return [name, conditions, _METRICS[first.row["metric"]], *parts]


def _generation_before_after() -> list[str]:
    """Generation's share of generation and training, as Figure 7 shows it."""
    parts: list[str] = []
    for place in range(2):
        one, two = (steps[place].generation for steps in figure_7().values())
        parts += [percent(one), percent(two), f"{100 * (two - one):+.0f} points"]
    return ["Disaggregated", "33B, 4x8", "generation's share", *parts]
