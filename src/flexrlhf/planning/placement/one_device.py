"""The plan for a single device: all roles on it, in turn."""

from __future__ import annotations

from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import PlanError, nearest
from flexrlhf.core.names import STRATEGIES
from flexrlhf.planning.placement.plan import Plan, RolePlacement

_NOT_BUILT: Final[dict[str, str]] = {
    "guideline": "The rule of thumb that chooses by the number of devices is not built yet.",
    "custom": "Placements by ratio, pools or device lists are not built yet.",
}
_ONE_DEVICE: Final = "On one device every role runs there in turn: `colocated`."


def one_device_plan(spec: AlgorithmSpec, *, strategy: str = "auto") -> Plan:
    """Returns the only plan that one device allows: every role of `spec` on device 0.

    Args:
        spec: the algorithm whose roles are placed.
        strategy: `auto` or `colocated`.

    Raises:
        PlanError: another strategy was asked for.
    """
    if strategy not in ("auto", "colocated"):
        raise _refusal(strategy)
    return Plan(
        rank=1,
        strategy="colocated",
        chosen_by="auto" if strategy == "auto" else "user",
        feasible=True,
        placement={role: RolePlacement(devices=(0,)) for role in spec.roles},
        why="The run has one device, so all roles share it and run in turn.",
    )


def _refusal(strategy: str) -> PlanError:
    do = "Set placement.strategy = auto, or leave it out."
    if strategy in _NOT_BUILT:
        return PlanError(f"Strategy {strategy!r}: {_NOT_BUILT[strategy]}", _ONE_DEVICE, do)
    if strategy in STRATEGIES:
        return PlanError(
            f"Strategy {strategy!r} needs at least two devices, and this run has one; "
            "runs on several devices are not built yet.",
            _ONE_DEVICE,
            do,
        )
    known = ("auto", *STRATEGIES, *_NOT_BUILT)
    return PlanError(f"Unknown strategy {strategy!r}. {nearest(strategy, known)}", _ONE_DEVICE, do)
