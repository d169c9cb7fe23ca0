"""What can be run: one device in this process, or several in workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flexrlhf.core.errors import PlanError
from flexrlhf.core.model_families import STAGED_FAMILIES, TENSOR_PARALLEL_FAMILIES
from flexrlhf.planning.costs.shape import ModelShape
from flexrlhf.planning.placement.one_device import require_one_device
from flexrlhf.planning.placement.plan import Plan, RolePlacement

_SPLIT_FAMILIES: Final = {
    "tensor_parallel": TENSOR_PARALLEL_FAMILIES,
    "generation_tensor_parallel": TENSOR_PARALLEL_FAMILIES,
    "pipeline_parallel": STAGED_FAMILIES,
}
MOST_STAGED_ZERO: Final = 1
"""The largest ZeRO stage of a role in pipeline stages."""


def obstacle(placement: RolePlacement) -> str | None:
    """Returns why workers cannot hold a role so, in a sentence; None if they can."""
    if (placement.expert_parallel or 1) > 1:
        return f"Workers do not divide experts: expert_parallel = {placement.expert_parallel}."
    if placement.pipeline_parallel == 1:
        return None
    if placement.zero_stage > MOST_STAGED_ZERO:
        return (
            f"Several micro-batches are under way in a pipeline stage, which keeps its weights and "
            f"gradients whole for them: ZeRO stage {placement.zero_stage} would take them apart."
        )
    if placement.generation not in {None, "tensor_parallel"}:
        return (
            f"Workers generate with copies without stages, which is not generation = "
            f"{placement.generation}."
        )
    return None


def unsplittable(
    shape: ModelShape, degrees: Mapping[str, int]
) -> tuple[str, tuple[str, ...]] | None:
    """Returns a degree by which workers cannot split a model's family, and which they can.

    None where they can, or where the family is not known.

    Args:
        shape: of the model.
        degrees: by name, as in `placement.roles`.
    """
    for degree, families in _SPLIT_FAMILIES.items():
        if degrees.get(degree, 1) > 1 and shape.family not in {None, *families}:
            return degree, families
    return None


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
            "A plan that is run is feasible, and its roles are split as workers can split them.",
            "Train with a plan that can be run, or without one.",
        )
    for role, placement in plan.placement.items():
        reason = obstacle(placement)
        if reason is not None:
            raise PlanError(
                f"The plan {plan.strategy!r} cuts {role} into {placement.pipeline_parallel} "
                f"pipeline stages in a way that cannot be run. {reason}",
                "Stages go with replicas, tensor parallelism and ZeRO stage 0 or 1.",
                "Train with a plan that can be run, or without one.",
            )
    if plan.devices and plan.devices[-1] >= num_devices:
        raise PlanError(
            f"The plan {plan.strategy!r} uses device {plan.devices[-1]}.",
            f"The cluster has {num_devices} devices, numbered from 0.",
            "Train with a plan for this cluster, or on a larger one.",
        )
