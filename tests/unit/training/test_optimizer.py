"""Learning rates worked by hand, and which parameters decay."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from flexrlhf.learning.training.optimizer import (
    OptimizerSettings,
    build_optimizer,
    learning_rate_at,
)

# Ten steps, four of them warm-up; after it, six steps lead from the peak to zero.
WARM_UP = [0.25, 0.5, 0.75, 1.0]
AFTER = {
    "constant": [1.0] * 6,
    "linear": [1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6],
    "cosine": [
        1.0,
        (1 + math.sqrt(3) / 2) / 2,  # cos 30 degrees
        0.75,  # cos 60 degrees = 1/2
        0.5,
        0.25,
        (1 - math.sqrt(3) / 2) / 2,
    ],
}


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_rate_of_every_step(schedule):
    settings = OptimizerSettings(2e-3, total_steps=10, schedule=schedule, warmup_steps=4)
    rates = [learning_rate_at(step, settings) for step in range(10)]
    expected = [2e-3 * factor for factor in WARM_UP + AFTER[schedule]]
    assert rates == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("schedule", "last"), [("constant", 1.0), ("linear", 0.0), ("cosine", 0)])
def test_the_rate_stays_at_its_last_value_after_the_run(schedule, last):
    settings = OptimizerSettings(1.0, total_steps=3, schedule=schedule)
    for step in (3, 4, 1000):
        assert learning_rate_at(step, settings) == pytest.approx(last, abs=1e-15)


def test_without_warm_up_the_first_step_has_the_peak_rate():
    settings = OptimizerSettings(1.0, total_steps=4, schedule="linear")
    assert [learning_rate_at(step, settings) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_warm_up_longer_than_the_run(schedule):
    settings = OptimizerSettings(1.0, total_steps=2, schedule=schedule, warmup_steps=8)
    assert [learning_rate_at(step, settings) for step in (0, 1)] == [0.125, 0.25]
    assert learning_rate_at(8, settings) == 1.0


def test_matrices_decay_and_vectors_do_not():
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    optimizer = build_optimizer(model.parameters(), OptimizerSettings(0.1, 1, weight_decay=0.3))
    decay = {
        id(parameter): group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert {name: decay[id(parameter)] for name, parameter in model.named_parameters()} == {
        "0.weight": 0.3,
        "1.weight": 0.0,
        "1.bias": 0.0,
        "2.weight": 0.3,
        "2.bias": 0.0,
    }


def test_frozen_parameters_are_left_out():
    frozen, trained = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    frozen.requires_grad_(False)
    optimizer = build_optimizer([frozen, trained], OptimizerSettings(0.1, 1))
    assert [p for group in optimizer.param_groups for p in group["params"]] == [trained]
