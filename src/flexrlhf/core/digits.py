"""Numbers in sentences and tables of text: three digits that matter, never an exponent above 1."""

from __future__ import annotations

import math


def three_digits(value: float) -> str:
    """Returns `value` with three digits that matter; of what is larger, all before the point.

    Example:
        >>> [three_digits(v) for v in (0, 0.00561, 75.04, 312.4, 9946.2, math.inf)]
        ['0', '0.00561', '75.0', '312', '9,946', 'inf']
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:#.3g}".removesuffix(".")
