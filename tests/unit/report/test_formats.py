from __future__ import annotations

import math

import pytest

from flexrlhf.report.formats import (
    format_bytes,
    format_number,
    format_percent,
    format_seconds,
    format_value,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.12345, "0.123"),
        (12.0, "12"),
        (-0.5, "-0.5"),
        (3.21e-6, "3.21e-6"),
        (1e-5, "1e-5"),
        (0.00999, "0.00999"),
        (999.6, "1\u202f000"),
        (1234567, "1\u202f234\u202f567"),
        (1234.5, "1\u202f234"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12.3 ms"),
        (1.5, "1.5 s"),
        (119.0, "119 s"),
        (180.0, "3 min"),
        (9000.0, "2.5 h"),
    ],
)
def test_seconds_have_the_unit_that_suits(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(512, "512 B"), (1536, "1.5 KiB"), (3 * 2**30, "3 GiB"), (2**52, "4\u202f096 TiB")],
)
def test_bytes_are_binary(size, text):
    assert format_bytes(size) == text


def test_values_of_tables():
    assert format_percent(0.756) == "75.6 %"
    assert format_value(None) == "–"
    assert format_value(False) == "no"
    assert format_value([0, 1]) == "0, 1"
    assert format_value("auto") == "auto"
