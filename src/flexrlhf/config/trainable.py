"""What can be planned but not trained yet, with the reason for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flexrlhf.config.cluster import is_one_device
from flexrlhf.config.problems import Problem, mistake
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import BUILT
from flexrlhf.core.names import BUILT_ENGINES

_MOST_STALE: Final = 1
"""Iterations by which generating weights may lag in a run: one-step-off."""
_TRAINABLE_ROLES: Final = ("actor", "critic", "reward")


def check_trainable(config: RunConfig, prefix: str = "") -> Iterator[Problem]:
    """Yields what of one stage only the planner can take.

    Where roles go is not looked at here: the plan says whether it can be run.

    Args:
        config: the stage.
        prefix: of its keys, in a run of several stages.
    """
    name = config.algorithm.name
    if name not in BUILT:
        yield mistake(
            f"{prefix}algorithm.name",
            name,
            "it can be planned; training it is not built yet.",
            f"Right: {', '.join(BUILT)}.",
        )
    for role in _TRAINABLE_ROLES:
        model = getattr(config.model, role)
        if model is not None and model.lora is not None:
            yield mistake(
                f"{prefix}model.{role}.lora.rank",
                model.lora.rank,
                "adapters can be planned; training them is not built yet.",
                "Right: no lora, which trains all weights.",
            )
    weights = config.weights
    most = 0 if is_one_device(config.cluster) else _MOST_STALE
    if weights.max_staleness > most:
        yield mistake(
            f"{prefix}weights.max_staleness",
            weights.max_staleness,
            "it can be planned; one device generates with the weights that it trains."
            if most == 0
            else "it can be planned; training on samples older than one iteration is not built.",
            f"Right: at most {most}.",
            "cluster",
        )
    engine = config.rollout.engine
    if engine not in BUILT_ENGINES:
        yield mistake(
            f"{prefix}rollout.engine",
            engine,
            "it can be planned; generating with it is not built yet.",
            f"Right: {' or '.join(BUILT_ENGINES)}.",
        )
    groups = config.rollout.generated_groups
    if config.algorithm.name in BUILT and groups not in ("auto", 1):
        yield mistake(
            f"{prefix}rollout.generated_groups",
            groups,
            f"it is a supposition for planning; {config.algorithm.name} trains on every group.",
            "Right: auto, or leave it out.",
        )
    if config.rollout.speedup != 1:
        yield mistake(
            f"{prefix}rollout.speedup",
            config.rollout.speedup,
            "it is a supposition for planning; it makes no run faster.",
            "Right: 1, or leave it out.",
        )
