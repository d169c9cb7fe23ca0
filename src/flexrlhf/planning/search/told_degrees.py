"""Says which degree of the user leaves a role no way to be split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import Role
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.placement.choices import Choices
from flexrlhf.planning.placement.runnable import MOST_STAGED_ZERO, unsplittable
from flexrlhf.planning.search.request import PlanRequest

_MOST_PARTS: Final = 64
"""Into which a head count is offered to be divided."""
_TENSOR: Final = ("tensor_parallel", "generation_tensor_parallel")


def check_degrees(request: PlanRequest, choices: Choices) -> None:
    """Refuses degrees of the user that no devices could make possible.

    Raises:
        PlanError: says which, and what would do.
    """
    for role, degrees in choices.degrees.items():
        model = request.model_of(role)
        if model is not None:
            _check_heads(role, model, degrees)
            _check_layers(role, model, degrees)
            if request.runnable:
                _check_family(role, model, degrees)
                _check_sharded_stages(role, degrees)


def _check_heads(role: Role, model: HeldModel, degrees: Mapping[str, Any]) -> None:
    heads = model.shape.heads
    for key in _TENSOR:
        degree = degrees.get(key, 1)
        if heads % degree:
            divisors = [d for d in range(1, _MOST_PARTS + 1) if heads % d == 0]
            raise PlanError(
                f"placement.roles.{role}.{key} = {degree}, but {model.shape.name} has "
                f"{heads} attention heads.",
                f"The degree divides the heads: {', '.join(map(str, divisors))}.",
                "Change the degree, or leave it to the planner.",
            )


def _check_layers(role: Role, model: HeldModel, degrees: Mapping[str, Any]) -> None:
    stages, layers = degrees.get("pipeline_parallel", 1), model.shape.layers
    if stages > layers:
        raise PlanError(
            f"placement.roles.{role}.pipeline_parallel = {stages}, but {model.shape.name} has "
            f"{layers} layers.",
            "Every stage holds at least one layer.",
            f"Set it to {layers} or less, or leave it to the planner.",
        )


def _check_family(role: Role, model: HeldModel, degrees: Mapping[str, Any]) -> None:
    found = unsplittable(model.shape, degrees)
    if found is not None:
        degree, families = found
        raise PlanError(
            f"placement.roles.{role}.{degree} = {degrees[degree]}, but workers cannot split "
            f"{model.shape.family} models so.",
            f"They can split {', '.join(families)}.",
            f"Set {degree} to 1 and shard by ZeRO instead, or leave it to the planner.",
        )


def _check_sharded_stages(role: Role, degrees: Mapping[str, Any]) -> None:
    stages, zero = degrees.get("pipeline_parallel", 1), degrees.get("zero_stage", 0)
    if stages > 1 and zero > MOST_STAGED_ZERO:
        raise PlanError(
            f"placement.roles.{role} has pipeline_parallel = {stages} and zero_stage = {zero}.",
            "Several micro-batches are under way in a stage, for which its weights and gradients "
            "stay whole: zero_stage is 0 or 1 there.",
            "Change one of the two, or leave it to the planner.",
        )
