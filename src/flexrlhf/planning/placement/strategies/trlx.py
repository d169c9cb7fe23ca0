"""trlx: the reward model on a device of its own, every other role on all the others.

Source: trlX, accelerate_ppo_trainer.py: samples are gathered to the main process, which asks for
their rewards, and its scores are scattered back. ZeRO-3 gathers weights for every token.
"""

from __future__ import annotations

from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import in_order
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.layouts import everywhere, rewards_hosted_apart
from flexrlhf.planning.placement.strategies.reward_on_one import reward_models

_NAME: Final = "trlx"


def trlx(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement]:
    """Returns trlX's layout; without a reward model, or a second device, all roles share."""
    models = reward_models(spec)
    devices, note = everywhere(spec, cluster.devices), "As in trlX: all roles on all devices."
    if models and cluster.num_devices > 1:
        devices = rewards_hosted_apart(in_order(spec.roles), cluster.devices, models)
        note = (
            f"As in trlX: {', '.join(models)} alone on device {cluster.devices[-1]}, all other"
            " roles on the others."
        )
    generation = "per_token" if spec.generates else None
    return [Arrangement(_NAME, devices, note, generation)]
