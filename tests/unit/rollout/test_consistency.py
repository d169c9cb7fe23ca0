"""The gap between two opinions on the same tokens."""

from __future__ import annotations

import math

import pytest
import torch

from flexrlhf.core.errors import ShapeError
from flexrlhf.learning.rollout.consistency import logprob_gap


def test_the_gap_is_the_largest_difference_of_any_sample() -> None:
    ours = [torch.tensor([0.0, -1.0, -2.0]), torch.tensor([0.0, -3.0])]
    theirs = [torch.tensor([0.0, -1.25, -2.0]), torch.tensor([0.0, -2.5])]
    assert logprob_gap(ours, theirs) == 0.5
    assert logprob_gap([], []) == 0.0


def test_a_number_that_is_none_is_not_hidden() -> None:
    ours = [torch.tensor([0.0, math.nan]), torch.tensor([0.0, -3.0])]
    assert math.isnan(logprob_gap(ours, [torch.zeros(2), torch.zeros(2)]))


def test_samples_must_be_the_same() -> None:
    with pytest.raises(ShapeError):
        logprob_gap([torch.zeros(3)], [torch.zeros(2)])
    with pytest.raises(ShapeError):
        logprob_gap([torch.zeros(3)], [])
