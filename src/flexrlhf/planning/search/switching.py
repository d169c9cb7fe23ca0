"""What it takes to go from one stage of a run to the next, and the plans that are best together.

A stage may begin when the weights of its roles lie where its plan wants them. Those that the stage
before held in the same place stay there; those that it held elsewhere, or split otherwise, come
over the links; all others are read from files, each byte once per node.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.names import SHADOWS, Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.search.request import PlanRequest

_READ_RATE: Final = 2e9
"""Bytes/s at which a node reads files: one drive on PCIe. An assumption, not a measurement."""


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """The weights of one role in their place."""

    content: str
    """What tells weights apart: where they come from, or the stage and role that trained them."""
    placement: RolePlacement
    num_bytes: float

    @property
    def split(self) -> tuple[tuple[int, ...], int, int, int]:
        """Which device holds which part."""
        placed = self.placement
        shards = placed.shard_devices or placed.data_parallel
        parts = shards if placed.zero_stage == 3 else 1  # ZeRO-3 shards weights
        return placed.devices, placed.tensor_parallel, placed.pipeline_parallel, parts


def held_weights(
    request: PlanRequest, plan: Plan, contents: Mapping[Role, str]
) -> Iterator[HeldWeights]:
    """Returns what a plan holds; a shadow has what its original has.

    Args:
        request: what is placed.
        plan: where.
        contents: of each role with a model.
    """
    originals: dict[Role, Role] = {shadow: role for role, shadow in SHADOWS.items()}
    for role, placement in plan.placement.items():
        model = request.model_of(role)
        content = contents.get(originals.get(role, role))
        if model is not None and content is not None:
            yield HeldWeights(content, placement, model.weight_bytes)


def switch_s(
    cluster: Cluster,
    calibration: Calibration,
    before: Sequence[HeldWeights],
    after: Sequence[HeldWeights],
) -> float:
    """Returns the seconds until everything lies where the next stage wants it.

    What moves goes one after the other, as it shares links; nodes read files next to each other.

    Args:
        cluster: the machines.
        calibration: shares of the links' bandwidth that weights reach.
        before: at the end of a stage.
        after: at the beginning of the next.
    """
    there = {(held.content, held.split) for held in before}
    sources = {held.content: held for held in before}
    moved_s = 0.0
    read: dict[int, float] = defaultdict(float)
    for wanted in after:
        if (wanted.content, wanted.split) in there:
            continue
        if source := sources.get(wanted.content):
            moved_s += _moved_s(cluster, calibration, source, wanted)
        else:
            for node in cluster.nodes_of(wanted.placement.devices):
                read[node.index] += wanted.num_bytes
    return moved_s + max(read.values(), default=0.0) / _READ_RATE


def best_together(
    work_s: Sequence[Sequence[float]], switches_s: Sequence[Sequence[Sequence[float]]]
) -> tuple[int, ...]:
    """Returns which plan of each stage makes the whole run shortest.

    Args:
        work_s: per stage and plan, the seconds of all its iterations.
        switches_s: between stage k and the next, from each plan of one to each of the other.
    """
    totals = [(seconds, (index,)) for index, seconds in enumerate(work_s[0])]
    for between, seconds in zip(switches_s, work_s[1:], strict=True):
        totals = [
            min(
                (total + between[chosen[-1]][index] + own_s, (*chosen, index))
                for total, chosen in totals
            )
            for index, own_s in enumerate(seconds)
        ]
    return min(totals, default=(math.inf, ()))[1]


def _moved_s(
    cluster: Cluster, calibration: Calibration, source: HeldWeights, wanted: HeldWeights
) -> float:
    """Each byte travels once to each node, along a chain of nodes."""
    homes = cluster.nodes_of(source.placement.devices)
    targets = cluster.nodes_of(wanted.placement.devices)
    link = cluster.link_between(homes[0], targets[-1])
    if {node.index for node in homes} | {node.index for node in targets} == {homes[0].index}:
        width = len(wanted.placement.devices)
        return wanted.num_bytes / (link.rate(calibration.link_efficiency) * width)
    return wanted.num_bytes / link.rate(calibration.sync_efficiency)
