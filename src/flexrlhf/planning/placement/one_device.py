"""The plan for a single device: all roles on it, in turn; and what such a run cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import PlanError, nearest
from flexrlhf.core.names import PUBLISHED_SYSTEMS, STRATEGIES
from flexrlhf.planning.placement.choices import NO_CHOICES, Choices
from flexrlhf.planning.placement.plan import ChosenBy, Plan, RolePlacement

_CHOSEN_BY: Final[Mapping[str, ChosenBy]] = {
    "auto": "auto",
    "guideline": "guideline",
    "colocated": "user",
    "custom": "user",
}
"""Strategies that one device can have, and who then chose it."""
_ONE_DEVICE: Final = "On one device every role runs there in turn: `colocated`."
_MORE: Final = "cluster.workers = 2 runs two worker processes here, with a device each."
_ALONE: Final = RolePlacement(devices=(0,))
_HARMLESS: Final[Mapping[str, int]] = {"shard_devices": 1, "generation_tensor_parallel": 1}
_MEASURED: Final = ("devices", "micro_batch_samples")
"""Keys of a plan that a run on one device does not take: a trial step finds the micro-batch."""


def one_device_plan(spec: AlgorithmSpec, choices: Choices = NO_CHOICES) -> Plan:
    """Returns the only plan that one device allows: every role of `spec` on device 0.

    Args:
        spec: the algorithm whose roles are placed.
        choices: of the user.

    Raises:
        PlanError: they ask for more than one device can do.
    """
    _check_strategy(choices.strategy)
    _check_layout(choices)
    for role, degrees in choices.degrees.items():
        for key, value in degrees.items():
            _check_wanted(f"placement.roles.{role}.{key}", key, value)
    return Plan(
        rank=1,
        strategy="colocated",
        chosen_by="user" if choices.has_layout else _CHOSEN_BY[choices.strategy],
        feasible=True,
        placement=dict.fromkeys(spec.roles, _ALONE),
        why="The run has one device, so all roles share it and run in turn.",
    )


def require_one_device(plan: Plan) -> None:
    """Checks that a plan can be run in one process on one device.

    Raises:
        PlanError: it needs more devices, cannot be run at all, or splits a role.
    """
    if plan.export_only or not plan.feasible:
        raise PlanError(
            f"The plan {plan.strategy!r} is for planning and export only: {plan.why}"
            if plan.export_only
            else f"The plan {plan.strategy!r} is not feasible: {plan.why}",
            _ONE_DEVICE,
            "Train with a plan that can be run, or without one.",
        )
    if len(plan.devices) > 1:
        raise PlanError(
            f"The plan {plan.strategy!r} has {len(plan.devices)} devices, and this run has one.",
            _ONE_DEVICE,
            "Train with a plan for one device, or without one.",
        )
    for role, placement in plan.placement.items():
        for key, value in placement.to_json().items():
            if key not in _MEASURED:
                _check_degree(f"{key} of the {role}", key, value)


def _check_strategy(strategy: str) -> None:
    if strategy in _CHOSEN_BY:
        return
    do = "Set placement.strategy = auto, or leave it out."
    if strategy == "all":
        raise PlanError(
            "placement.strategy = 'all' lists what could be done, and a run does one thing.",
            _ONE_DEVICE,
            do,
        )
    if strategy in PUBLISHED_SYSTEMS:
        raise PlanError(
            f"Strategy {strategy!r} says where another system would put roles: it can be planned, "
            "not run.",
            _ONE_DEVICE,
            do,
        )
    if strategy in STRATEGIES:
        raise PlanError(
            f"Strategy {strategy!r} needs at least two devices, and this run has one.",
            _ONE_DEVICE,
            f"{do} {_MORE}",
        )
    known = ("auto", "guideline", "all", *STRATEGIES)
    raise PlanError(f"Unknown strategy {strategy!r}. {nearest(strategy, known)}", _ONE_DEVICE, do)


def _check_layout(choices: Choices) -> None:
    devices = {device for listed in choices.devices.values() for device in listed}
    for key, is_wrong in (
        ("ratio", any(share != 1 for share in choices.ratio or ())),
        ("pools", choices.pools is not None),
        ("devices", bool(devices - {0})),
    ):
        if is_wrong:
            raise PlanError(
                f"placement.{key} divides several devices, and this run has one.",
                _ONE_DEVICE,
                f"Leave placement.{key} out. {_MORE}",
            )


def _check_wanted(label: str, key: str, value: Any) -> None:
    """Checks a degree that the config asks for."""
    if key == "micro_batch_samples":
        raise PlanError(
            f"{label} = {value}, but on one device the roles share one micro-batch.",
            "training.micro_batch_samples fixes it, training.micro_batch_tokens its size.",
            "Use one of these.",
        )
    _check_degree(label, key, value)


def _check_degree(label: str, key: str, value: Any) -> None:
    """Checks one key of a role's placement; parts and gathers of one device mean nothing."""
    alone = getattr(_ALONE, key)
    if value == alone or (key in _HARMLESS and value == _HARMLESS[key]) or key == "generation":
        return
    raise PlanError(
        f"{label} = {value}, but a run on one device cannot split or offload a role.",
        f"On one device it is {_HARMLESS.get(key, alone)}.",
        f"Leave it out. {_MORE}",
    )
