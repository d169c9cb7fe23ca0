"""deepspeed_chat: every role on every device, generating from ZeRO shards.

Source: DeepSpeedExamples, applications/DeepSpeed-Chat, step 3: without the hybrid engine ZeRO-3
gathers weights for every token, with it once.
"""

from __future__ import annotations

from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import GenerationMode
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.layouts import everywhere

_MODES: Final[dict[GenerationMode, str]] = {
    "per_token": "without its hybrid engine, weights are gathered for every token",
    "gathered": "with its hybrid engine, weights are gathered once",
}


def deepspeed_chat(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement]:
    """Returns DeepSpeed-Chat's layout, without and with its hybrid engine."""
    devices = everywhere(spec, cluster.devices)
    note = "As in DeepSpeed-Chat: all roles on all devices"
    if not spec.generates:
        return [Arrangement("deepspeed_chat", devices, f"{note}.")]
    return [
        Arrangement("deepspeed_chat", devices, f"{note}; {how}.", generation=mode)
        for mode, how in _MODES.items()
    ]
