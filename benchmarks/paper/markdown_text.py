"""Small pieces of Markdown that both pages are made of."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table, an empty one behind them."""
    return [
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def paragraph(text: str) -> list[str]:
    """Returns the lines of a paragraph, an empty one behind them."""
    return [*_wrapped(text, ""), ""]


def items(*texts: str) -> list[str]:
    """Returns the lines of a list, an empty one behind them."""
    return [*(line for text in texts for line in _wrapped(f"- {text}", "  ")), ""]


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def times(value: float | None) -> str:
    """Returns a factor such as 4.89, nothing known as a dash."""
    return "-" if value is None else f"{value:.2f}"


def percent(fraction: float | None) -> str:
    """Returns a share such as 84.6 %."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def rate(value: float | None) -> str:
    """Returns samples/s with three digits that matter."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def spread(values: Sequence[float], unit: str = "x") -> str:
    """Returns the least and the largest of some factors, as in 0.55x to 0.56x; none is a dash."""
    if not values:
        return "-"
    low, high = f"{min(values):.2f}{unit}", f"{max(values):.2f}{unit}"
    return low if low == high else f"{low} to {high}"


def percent_spread(values: Sequence[float]) -> str:
    """Returns the same for shares, in whole percent."""
    if not values:
        return "-"
    low, high = f"{100 * min(values):.0f} %", f"{100 * max(values):.0f} %"
    return low if low == high else f"{low} to {high}"


def model_name(shape: str) -> str:
    """Returns the size of a LLaMA, as tables of the paper name it."""
    return shape.removeprefix("llama-").upper()
