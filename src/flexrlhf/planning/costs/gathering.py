"""Seconds in which weights that ZeRO-3 shards are gathered once."""

from __future__ import annotations

from math import ceil
from typing import Final

from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.collectives import all_gather_s, late_s
from flexrlhf.planning.costs.groups import CommunicationGroup
from flexrlhf.planning.costs.held_model import HeldModel

_FETCHED_PARAMS: Final = 5e7
"""Parameters that one fetch carries at most. Source: DeepSpeed's `stage3_prefetch_bucket_size`."""


def gather_weights_s(
    model: HeldModel, group: CommunicationGroup, calibration: Calibration, *, parts: int = 1
) -> float:
    """Returns the seconds of one way through all weights, fetch after fetch.

    Args:
        model: whose weights are sharded.
        group: over which they are.
        calibration: what a collective takes beside its bytes.
        parts: into which tensor and pipeline parallelism cut the weights before.
    """
    layers = model.shape.layers
    fetches = layers * ceil(model.num_params / layers / parts / _FETCHED_PARAMS)
    gather_s = all_gather_s(model.gathered_bytes / parts, group, calibration)
    return gather_s + fetches * (late_s(group, calibration) + calibration.fetch_s)
