"""Means are weighted by what they are means of, and what does not apply is absent."""

from __future__ import annotations

import math
import statistics

import pytest

from flexrlhf.runtime.measurements import Measurement, joined, mean_and_std


def test_parts_of_a_batch_join_to_the_mean_of_the_batch():
    parts = [[3.0, 5.0], [1.0], [4.0, 4.0, 10.0]]
    reports = [{"length": Measurement.mean_of(part)} for part in parts]
    assert joined(reports) == {"length": pytest.approx(27 / 6)}


def test_the_maximum_of_maxima():
    gaps = [{"gap": Measurement(value, reduction="max")} for value in (0.5, 2.0, 1.0)]
    assert joined(gaps) == {"gap": 2.0}


def test_names_of_some_reports_only():
    reports = [{"a": Measurement(1.0)}, {}, {"b": Measurement(2.0), "a": Measurement(3.0)}]
    assert joined(reports) == {"a": 2.0, "b": 2.0}
    assert joined([]) == {}


def test_what_does_not_apply_is_left_out_of_the_mean():
    part = Measurement.mean_of([1.0, math.nan, 3.0, math.inf])
    assert (part.value, part.weight) == (2.0, 2.0)
    nothing = Measurement.mean_of([math.nan])
    assert nothing.weight == 0
    assert joined([{"x": part}, {"x": nothing}]) == {"x": 2.0}


def test_a_name_that_applies_nowhere_is_absent():
    assert joined([{"x": Measurement.mean_of([])}, {"x": Measurement.mean_of([math.nan])}]) == {}


def test_mean_and_sample_deviation_of_a_batch():
    values = [1.0, 2.0, 4.0, 9.0]
    measured = joined([mean_and_std("reward", values)])
    assert measured["reward/mean"] == statistics.fmean(values)
    assert measured["reward/std"] == pytest.approx(statistics.stdev(values))
    assert joined([mean_and_std("reward", [7.0])]) == {"reward/mean": 7.0, "reward/std": 0.0}
