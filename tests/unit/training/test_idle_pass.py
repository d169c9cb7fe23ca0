"""A replica without samples takes part in a pass and adds nothing to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flexrlhf.learning.training.objectives import (
    Objective,
    PolicyObjective,
    PreferenceObjective,
    SharedObjective,
    SupervisedObjective,
    ValueObjective,
)
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.optimizer import OptimizerSettings
from flexrlhf.learning.training.step import RoleTrainer

SETTINGS = OptimizerSettings(0.01, total_steps=4)
POLICY = PolicyObjective(
    clip_low=0.2,
    clip_high=0.3,
    dual_clip=3.0,
    aggregation="sequence_mean",
    entropy_coef=0.01,
    kl_coef=0.1,
    kl_estimator="k3",
    temperature=0.7,
)
VALUE = ValueObjective(clip=0.2)
OBJECTIVES: list[tuple[str, Objective]] = [
    ("policy", POLICY),
    ("policy", SupervisedObjective()),
    ("scorer", VALUE),
    ("scorer", PreferenceObjective()),
    ("shared", SharedObjective(POLICY, VALUE, value_coef=0.5)),
]


class InLockstep(OneDeviceBackend):
    """One device that believes to be one of several replicas in lockstep."""

    needs_lockstep: Any = True


@pytest.mark.parametrize(("kind", "objective"), OBJECTIVES)
def test_every_weight_gets_a_gradient_of_zero(make_model, kind: str, objective: Objective):
    model = make_model(kind)
    RoleTrainer("actor", InLockstep(model, SETTINGS), objective).accumulate_nothing()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.equal(parameter.grad, torch.zeros_like(parameter)), name


def test_without_lockstep_no_pass_is_made(make_model: Callable[..., torch.nn.Module]):
    model = make_model()
    RoleTrainer("actor", OneDeviceBackend(model, SETTINGS), POLICY).accumulate_nothing()
    assert all(parameter.grad is None for parameter in model.parameters())
