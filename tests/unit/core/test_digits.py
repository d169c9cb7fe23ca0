"""Three digits that matter, in every size of number that a plan has."""

from __future__ import annotations

import math

import pytest

from flexrlhf.core.digits import three_digits


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.00561, "0.00561"),
        (0.8, "0.800"),
        (57.96, "58.0"),
        (99.96, "100"),
        (312.4, "312"),
        (999.4, "999"),
        (999.6, "1,000"),
        (9946.2, "9,946"),
        (546_812.0, "546,812"),
        (-74.96, "-75.0"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert three_digits(value) == text


@pytest.mark.parametrize("power", range(-4, 9))
def test_what_is_read_is_within_half_a_percent(power: int) -> None:
    for mantissa in (1.0, 1.2345, 3.999, 9.9951):
        value = mantissa * 10.0**power
        read = float(three_digits(value).replace(",", ""))
        assert read == pytest.approx(value, rel=0.005)
