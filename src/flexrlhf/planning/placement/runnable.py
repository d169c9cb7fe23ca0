"""What can be run: one device in this process, or several in workers."""

from __future__ import annotations

from flexrlhf.core.errors import PlanError
from flexrlhf.planning.placement.one_device import require_one_device
from flexrlhf.planning.placement.plan import Plan


def require_runnable(plan: Plan, num_devices: int) -> None:
    """Checks that a plan can be run on a cluster of so many devices.

    Raises:
        PlanError: it needs other devices, cannot be run at all, or splits a role as none can be.
    """
    if num_devices == 1:
        require_one_device(plan)
        return
    if plan.export_only or not plan.feasible:
        reason = "for planning and export only" if plan.export_only else "not feasible"
        raise PlanError(
            f"The plan {plan.strategy!r} is {reason}: {plan.why}",
            "A plan that is run is feasible, and splits roles by replicas and tensors.",
            "Train with a plan that can be run, or without one.",
        )
    if plan.devices and plan.devices[-1] >= num_devices:
        raise PlanError(
            f"The plan {plan.strategy!r} uses device {plan.devices[-1]}.",
            f"The cluster has {num_devices} devices, numbered from 0.",
            "Train with a plan for this cluster, or on a larger one.",
        )
