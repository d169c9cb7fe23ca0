"""What fits, and how much memory is used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from flexrlhf.core.names import Stage
from flexrlhf.planning.cases.setting import Setting
from flexrlhf.planning.costs.shape_catalogue import SHAPES
from flexrlhf.planning.placement.device_memory import MEMORY_STAGES
from flexrlhf.planning.search.evaluation import Evaluation, evaluate

_SMALLEST: Final = 1


def fits(setting: Setting) -> float:
    """Returns 1 where a case fits into its devices, else 0; a batch left open is the smallest."""
    return 1.0 if _evaluated(setting).fit.is_feasible else 0.0


def peak_gigabytes(setting: Setting, *, stages: Iterable[Stage] = MEMORY_STAGES) -> float:
    """Returns the most that any device allocates, in 10^9 bytes."""
    predicted = _evaluated(setting).plan.predicted
    assert predicted is not None
    wanted = tuple(stages)
    return max(needs[stage] for needs in predicted.peak_bytes.values() for stage in wanted) / 1e9


def largest_model(setting: Setting) -> float:
    """Returns the parameters of the largest known actor that fits, each role a model like it."""
    best = 0.0
    for shape in sorted(SHAPES.values(), key=lambda shape: -shape.num_params):
        models = {
            role: replace(model, shape=shape) if _is_like_actor(setting, role) else model
            for role, model in setting.request.models.items()
        }
        request = replace(setting.request, models=models)
        if fits(replace(setting, request=request)):
            best = float(shape.num_params)
            break
    return best


def _is_like_actor(setting: Setting, role: str) -> bool:
    models = setting.request.models
    return models[role].shape == models["actor"].shape  # type: ignore[index]


def _evaluated(setting: Setting) -> Evaluation:
    parts = min(setting.rollout_parts, setting.request.workload.num_samples)
    plan = replace(setting.plan, rollout_micro_batches=parts)
    return evaluate(setting.request, plan, requires_fit=False)
