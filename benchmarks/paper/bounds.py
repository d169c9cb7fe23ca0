"""What bounds the paper's placements: twice of one thing, and how much faster they get."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from markdown_text import model_name, paragraph, table, times
from published import row_named
from work import work

from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import case_of
from flexrlhf.planning.cases.setting import Setting, setting_of
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.search.evaluation import evaluate
from flexrlhf.planning.search.plans import RankedPlans, ranked_plans
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.sensitivity import (
    with_faster_devices,
    with_faster_links,
    with_more_memory,
)

_COLOCATED: Final = ("flex-t1-001", "flex-t1-002", "flex-t1-003", "flex-t1-012", "flex-t1-024")
_CLUSTERS: Final = (("A100-80G", 1), ("A100-40G", 1), ("V100-32G", 2))
"""Devices and nodes of eight for the plans of 7B and 13B."""
_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class FilledBatch:
    """A placement whose batch is the largest that memory holds at once."""

    batch: int
    doubled: int
    """Samples per device with twice the memory."""
    memory: float
    devices: float
    links: float
    """Samples/s with twice of it over samples/s as it is, each with its own largest batch."""

    @property
    def bound_by(self) -> str:
        """What of the three gives most."""
        gains = {"memory": self.memory, "compute": self.devices, "communication": self.links}
        return max(gains, key=lambda name: gains[name])


def filled_batch(name: str) -> FilledBatch:
    """Returns what a row of Table I gains, one that is no larger than its smallest cluster."""
    setting = setting_of(case_of(dict(row_named(name)), 0), Assumptions())
    cluster = setting.request.cluster
    batch, rate = _at_largest(setting, cluster)
    doubled, with_memory = _at_largest(setting, with_more_memory(cluster))
    _, with_devices = _at_largest(setting, with_faster_devices(cluster))
    _, with_links = _at_largest(setting, with_faster_links(cluster, 2.0))
    return FilledBatch(batch, doubled, with_memory / rate, with_devices / rate, with_links / rate)


def planned(model: str, device: str, nodes: int, *, adapters: bool) -> RankedPlans:
    """Returns the plans for a batch that is given, and what the best would gain."""
    return ranked_plans(_request(model, device, nodes, adapters=adapters))


def bounds_section() -> Iterator[str]:
    """Yields the section of the page."""
    yield "## What bounds them"
    yield ""
    yield from paragraph(
        "The digest has memory bound 7B and 13B, and communication 33B and 65B. In the paper a"
        " batch is generated and trained in one pass, as large as memory holds it, so memory is"
        " speed. DeepSpeed-Chat's placement, each with the largest batch that it then holds,"
        " simulated:"
    )
    yield from _filled_table()
    yield from paragraph(
        "So it comes out for 13B; 7B gains a little more from faster devices. At 33B and 65B, where"
        " every token gathers all weights, links give far more than devices, but a larger batch"
        " shares each gather among more samples and gives more still."
    )
    yield from paragraph(
        "`flexrlhf plan` is asked for a batch that is given, and may train it in several passes."
        " Then memory costs little: with twice as much and everything planned anew, the best plan"
        " for 72 samples a device of 256 tokens gains what follows, simulated. So the digest's"
        " scenario is one of the paper's way to run, not of the models; for a batch of the user's"
        " own `plan` says both numbers."
    )
    yield from _planned_table()


def _filled_table() -> list[str]:
    rows: list[list[str]] = []
    for name in _COLOCATED:
        row, found = row_named(name), filled_batch(name)
        gains = (times(gain) for gain in (found.memory, found.devices, found.links))
        batches = (str(found.batch), str(found.doubled))
        cells = (model_name(row["actor_model"]), row["n_gpus"], *batches, *gains, found.bound_by)
        rows.append(list(cells))
    header = ("model", "devices", "batch", "with twice the memory", "memory", "devices", "links")
    return table((*header, "bound by"), rows)


def _planned_table() -> list[str]:
    rows: list[list[str]] = []
    for model in ("llama-7b", "llama-13b"):
        for device, nodes in _CLUSTERS:
            cells = [model_name(model), f"{8 * nodes} {device}"]
            for adapters in (True, False):
                gains = planned(model, device, nodes, adapters=adapters).gains
                cells += (
                    ["does not fit", "-"]
                    if gains is None
                    else [
                        times(gains.memory),
                        gains.bound_by,
                    ]
                )
            rows.append(cells)
    header = ("model", "devices", "adapters", "bound by", "all weights", "bound by")
    return table(header, rows)


def _request(model: str, device: str, nodes: int, *, adapters: bool) -> PlanRequest:
    request = work(model, 8 * nodes, _TOKENS)
    cluster = Cluster.uniform(device, nodes=nodes, devices_per_node=8)
    request = replace(request, cluster=cluster)
    if adapters:
        return request
    models = {
        role: replace(held, lora_rank=None, weight_dtype="float32", recomputes=True)
        if held.is_trained
        else held
        for role, held in request.models.items()
    }
    return replace(request, models=models)


def _at_largest(setting: Setting, cluster: Cluster) -> tuple[int, float]:
    """Samples per device, and samples/s with so many."""
    request = replace(setting.request, cluster=cluster)
    changed = replace(setting, request=request)
    first = evaluate(
        changed.with_samples(setting.num_devices).request, setting.plan, requires_fit=False
    )
    assert first.plan.predicted is not None
    batch = max(1, first.plan.predicted.max_batch or 1)
    filled = changed.with_samples(batch * setting.num_devices)
    found = evaluate(filled.request, filled.plan, requires_fit=False).plan.predicted
    assert found is not None
    return batch, found.samples_per_s
