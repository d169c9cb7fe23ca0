"""Speeds of workers beside each other."""

from __future__ import annotations

import math

import pytest
import torch

from flexrlhf.core.relative_speeds import stepped
from flexrlhf.runtime.devices.speed import measured_speed


def test_a_speed_is_a_positive_number():
    assert measured_speed(torch.device("cpu")) > 0


def test_noise_is_no_difference():
    assert stepped([103.0, 98.0, 110.0, 93.0]) == (1.0,) * 4


def test_what_is_half_as_fast_has_half_the_speed():
    assert stepped([50.0, 104.0, 24.0]) == (0.5, 1.0, 0.25)


@pytest.mark.parametrize("part", [0.9, 0.6, 0.33, 0.07])
def test_a_step_is_within_a_fifth(part):
    (_, found) = stepped([1.0, part])
    assert abs(math.log2(found / part)) <= 0.25
