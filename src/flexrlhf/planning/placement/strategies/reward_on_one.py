"""reward_on_one: every role everywhere, but the reward model on a single device alone."""

from __future__ import annotations

from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.layouts import with_own_places

_NAME: Final = "reward_on_one"


def reward_on_one(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement] | Refusal:
    """Returns the layout in which all answers go to one device for their reward."""
    models = reward_models(spec)
    if not models:
        return Refusal(_NAME, f"{spec.name} has no reward model here that scores answers.")
    if cluster.num_devices < 2:
        return Refusal(_NAME, "With one device the reward model is on one in any case.")
    first = cluster.devices[:1]
    devices = with_own_places(spec, cluster.devices, dict.fromkeys(models, first))
    note = f"All roles are on all devices, but {', '.join(models)} on device {first[0]} alone."
    return [Arrangement(_NAME, devices, note)]


def reward_models(spec: AlgorithmSpec) -> list[Role]:
    """Returns the frozen models that score answers with a reward."""
    return [
        step.role
        for step in spec.scored
        if step.operation == "rewards" and step.role in spec.frozen
    ]
