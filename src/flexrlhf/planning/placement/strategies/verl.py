"""verl: every role on one global pool; the actor is resharded into the engine's layout to generate.

Source: verl, trainer_base.py (actor and critic on `global_pool`); HybridFlow, arXiv 2409.19256,
section 5 (the 3D-HybridEngine). Trained roles use FSDP, which is ZeRO-3.
"""

from __future__ import annotations

from dataclasses import replace

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement
from flexrlhf.planning.placement.layouts import everywhere
from flexrlhf.planning.placement.split_generation import split_generation


def verl(spec: AlgorithmSpec, cluster: Cluster) -> list[Arrangement]:
    """Returns verl's layout with whole engines, and with engines split inside nodes."""
    base = Arrangement(
        "verl",
        everywhere(spec, cluster.devices),
        "As in verl: all roles on all devices, trained ones sharded by ZeRO-3.",
        fixed={role: {"zero_stage": 3} for role in spec.trained},
    )
    if not spec.generates:
        return [base]
    return [replace(base, generation="gathered"), *split_generation(base, cluster)]
