"""Numbers as a person reads them: three digits that matter, and a unit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_THIN_SPACE = "\u202f"


def format_number(value: float) -> str:
    """Returns `value` with three significant digits, thousands apart by a thin space.

    Example:
        >>> [format_number(v) for v in (0.12345, 12.0, 3.21e-6, 1234567)]
        ['0.123', '12', '3.21e-6', '1\u202f234\u202f567']
    """
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", _THIN_SPACE)
    if abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    if abs(value) >= 999.5:
        return f"{round(value):,}".replace(",", _THIN_SPACE)
    return f"{float(f'{value:.3g}'):g}"


def format_seconds(seconds: float) -> str:
    """Returns a duration in the unit that suits it: ms, s, min or h."""
    if seconds < 1:
        return f"{format_number(seconds * 1e3)} ms"
    if seconds < 120:
        return f"{format_number(seconds)} s"
    if seconds < 7200:
        return f"{format_number(seconds / 60)} min"
    return f"{format_number(seconds / 3600)} h"


def byte_unit(largest: float) -> tuple[float, str]:
    """Returns the bytes of one unit, and its name, in which `largest` reads well."""
    power = 0
    while power < len(_BYTE_UNITS) - 1 and largest >= 1024 ** (power + 1):
        power += 1
    return float(1024**power), _BYTE_UNITS[power]


def format_bytes(size: float) -> str:
    """Returns a size in the binary unit that suits it."""
    divisor, unit = byte_unit(size)
    return f"{format_number(size / divisor)} {unit}"


def format_percent(fraction: float) -> str:
    """Returns a fraction as percent."""
    return f"{format_number(100 * fraction)} %"


def format_value(value: Any) -> str:
    """Returns a value of a config or plan in a table cell."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return format_number(value)
    if isinstance(value, list | tuple):
        return ", ".join(format_value(entry) for entry in value)
    return str(value)


def format_ranges(numbers: Iterable[int]) -> str:
    """Returns ascending whole numbers with consecutive ones as `0-7`.

    Example:
        >>> format_ranges([0, 1, 2, 3, 6])
        '0-3,6'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def short(value: float) -> float:
    """Returns `value` with six digits: enough for a drawing, and the page stays small."""
    return float(f"{value:.6g}")
