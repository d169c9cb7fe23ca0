"""Which loss each trained role of an algorithm minimises."""

from __future__ import annotations

import math

from flexrlhf.config.resolution import settled
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import ImportanceName, Role
from flexrlhf.learning.algorithms.importance import Importance
from flexrlhf.learning.training.objectives import (
    DirectPreferenceObjective,
    Objective,
    PolicyObjective,
    PreferenceObjective,
    SharedObjective,
    SupervisedObjective,
    ValueObjective,
)


def objective_of(role: Role, config: RunConfig, spec: AlgorithmSpec) -> Objective:
    """Returns what `role` learns under a resolved config."""
    if spec.data == "supervised":
        return SupervisedObjective()
    if role == "reward":
        return PreferenceObjective()
    if spec.data == "preferences":
        algorithm = config.algorithm
        return DirectPreferenceObjective(
            settled(algorithm.loss_type), algorithm.beta, algorithm.label_smoothing
        )
    clip = config.algorithm.value_clip
    value = ValueObjective(clip=math.inf if clip is None else clip)
    if role == "critic":
        return value
    policy = _policy_objective(config, spec)
    if spec.shares_trunk:
        return SharedObjective(policy, value, config.algorithm.value_coef)
    return policy


def _policy_objective(config: RunConfig, spec: AlgorithmSpec) -> PolicyObjective:
    algorithm = config.algorithm
    has_kl_loss = algorithm.kl_placement == "loss" and "reference" in spec.roles
    return PolicyObjective(
        clip_low=algorithm.clip,
        clip_high=settled(algorithm.clip_high),
        dual_clip=algorithm.dual_clip,
        aggregation=settled(algorithm.loss_aggregation),
        entropy_coef=algorithm.entropy_coef,
        kl_coef=settled(algorithm.kl_coef) if has_kl_loss else 0.0,
        kl_estimator=settled(algorithm.kl_estimator),
        temperature=config.rollout.temperature,
        is_on_policy=not spec.scores_actor,
        importance=_importance(config),
    )


def _importance(config: RunConfig) -> Importance | None:
    level: ImportanceName = settled(config.algorithm.importance)
    cap = config.algorithm.importance_cap
    return None if level == "none" else Importance(level, math.inf if cap is None else cap)
