"""The YAML form of what a profile says of several processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from flexrlhf.planning.costs.profiled.constants import ProfiledCosts
from flexrlhf.planning.costs.profiled.worker_costs import (
    Crowd,
    GroupCost,
    ParcelCost,
    RoundTrip,
    ShardedCost,
    WeightCost,
    WorkerCosts,
)

_SHARDED = ("gathers", "trains", "reduces")
_PLAIN = ("ranks", "message_s", "step_s", "sum_byte_s", "share_byte_s")


def worker_document(workers: WorkerCosts, one_thread: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the section `workers` of a profile.

    Args:
        workers: what was measured.
        one_thread: the constants of one process in their form.
    """
    return {
        "cores": workers.cores,
        "one_thread": dict(one_thread),
        "slowdowns": [asdict(crowd) for crowd in workers.crowds],
        "groups": [_group_row(group) for group in workers.groups],
        "parcels_s": {
            "request": workers.parcels.request_s,
            "byte": workers.parcels.byte_s,
            "sample": workers.parcels.sample_s,
        },
        "weights_s": {
            "pull": workers.weights.pull_s,
            "tensor": workers.weights.tensor_s,
            "byte": workers.weights.byte_s,
            "install_byte": workers.weights.install_byte_s,
        },
        "round_trips": [asdict(trip) for trip in workers.round_trips],
    }


def workers_from(
    section: Mapping[str, Any], costs_from: Callable[[Mapping[str, Any]], ProfiledCosts]
) -> WorkerCosts:
    """Returns what `worker_document` wrote.

    Args:
        section: checked.
        costs_from: reads the constants of one process.
    """
    return WorkerCosts(
        cores=section["cores"],
        costs=costs_from(section["one_thread"]),
        crowds=tuple(Crowd(**row) for row in section["slowdowns"]),
        groups=tuple(_group(row) for row in section["groups"]),
        parcels=ParcelCost(**{f"{key}_s": value for key, value in section["parcels_s"].items()}),
        weights=WeightCost(**{f"{key}_s": value for key, value in section["weights_s"].items()}),
        round_trips=tuple(RoundTrip(**row) for row in section["round_trips"]),
    )


def _group_row(group: GroupCost) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(group, name) for name in _PLAIN}
    for name in _SHARDED:
        part: ShardedCost = getattr(group, name)
        row |= {f"{name}_layer_s": part.layer_s, f"{name}_byte_s": part.byte_s}
    return row


def _group(row: Mapping[str, Any]) -> GroupCost:
    def sharded(name: str) -> ShardedCost:
        return ShardedCost(row[f"{name}_layer_s"], row[f"{name}_byte_s"])

    return GroupCost(
        *(row[name] for name in _PLAIN),
        gathers=sharded("gathers"),
        trains=sharded("trains"),
        reduces=sharded("reduces"),
    )
