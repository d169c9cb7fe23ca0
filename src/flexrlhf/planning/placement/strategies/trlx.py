"""trlx: every role on every device, but rewards come from the first one alone.

Source: trlX, accelerate_ppo_trainer.py: samples are gathered to the main process, which calls the
reward function, and its scores are scattered back. ZeRO-3 gathers weights for every token.
"""

from __future__ import annotations

from dataclasses import replace

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.layouts import everywhere
from flexrlhf.planning.placement.strategies.reward_on_one import reward_on_one


def trlx(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement]:
    """Returns trlX's layout."""
    found = reward_on_one(spec, cluster)
    if isinstance(found, Refusal):
        note = "As in trlX: all roles on all devices."
        found = [Arrangement("trlx", everywhere(spec, cluster.devices), note)]
    generation = "per_token" if spec.generates else None
    return [replace(arrangement, strategy="trlx", generation=generation) for arrangement in found]
