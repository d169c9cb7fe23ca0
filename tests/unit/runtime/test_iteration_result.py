"""What is known of an unfinished iteration comes through a checkpoint."""

from __future__ import annotations

import json
import math

import pytest

from flexrlhf.core.timeline import Span
from flexrlhf.runtime.iteration_result import IterationResult
from flexrlhf.runtime.measurements import Measurement


def test_a_result_comes_back_from_json():
    measured = {"a": Measurement(1.5, 3.0), "b": Measurement(2.0, reduction="max")}
    span = Span("generate/0", "device 1", "generate", "actor", 1.0, 2.5, 4)
    moved = Span("samples/0", "device 2", "score", None, 2.5, 2.75, 4, "experience")
    result = IterationResult(3, [measured, {}], [span, moved], ["generate/0"])
    assert IterationResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_a_mean_of_nothing_comes_back_too():
    result = IterationResult(0, [{"a": Measurement.mean_of([])}])
    read = IterationResult.from_json(json.loads(json.dumps(result.to_json())))
    assert math.isnan(read.measurements[0]["a"].value)


@pytest.mark.parametrize("document", [{}, {"iteration": 1}, {"iteration": "x"}, 3])
def test_anything_else_is_refused(document):
    with pytest.raises((LookupError, TypeError, ValueError)):
        IterationResult.from_json(document)
