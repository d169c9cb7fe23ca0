"""What bounds the paper's placements: twice of one thing, and how much faster they get."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from markdown_text import model_name, paragraph, table, times
from published import row_named
from work import work

from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import case_of
from flexrlhf.planning.cases.setting import Setting, setting_of
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.link_catalogue import link_type
from flexrlhf.planning.placement.prediction import Prediction
from flexrlhf.planning.search.evaluation import evaluate
from flexrlhf.planning.search.plans import RankedPlans, ranked_plans
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.sensitivity import (
    with_faster_devices,
    with_faster_links,
    with_more_memory,
)

_COLOCATED: Final = ("flex-t1-001", "flex-t1-002", "flex-t1-003", "flex-t1-012", "flex-t1-024")
_OTHERS: Final = (
    ("flex-het-002", "unlike pools, 33B, 100 Gbit/s between them", "Ethernet-100G"),
    ("flex-het-002", "unlike pools, 33B, 25 Gbit/s", "Ethernet-25G"),
    ("flex-het-002", "unlike pools, 33B, 10 Gbit/s", "Ethernet-10G"),
    ("flex-t5-001", "one device scores (trlX), 7B, 8 devices", None),
    ("flex-t5-005", "one device scores (trlX), 7B, 32 devices", None),
)
"""The digest's other two scenarios: a row, what it is, and the link between unlike pools."""
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
    no_idle: float
    """The same if no device were ever idle, at equal work."""

    @property
    def bound_by(self) -> str:
        """What of the four gives most."""
        gains = {
            "memory": self.memory,
            "compute": self.devices,
            "communication": self.links,
            "scheduling": self.no_idle,
        }
        return max(gains, key=lambda name: gains[name])


def filled_batch(name: str, between: str | None = None) -> FilledBatch:
    """Returns what a row gains, one of Table I on no more than its smallest cluster.

    Args:
        name: of the row.
        between: the link between unlike pools, where it is not the one that is assumed.
    """
    setting = setting_of(case_of(dict(row_named(name)), 0), Assumptions())
    cluster = setting.request.cluster
    if between is not None:
        links = {
            pools: link_type(between) if len(pools) > 1 else link
            for pools, link in cluster.between.items()
        }
        cluster = Cluster(cluster.nodes, links)
    batch, now = _at_largest(setting, cluster)
    doubled, larger = _at_largest(setting, with_more_memory(cluster))

    def gain(other: Prediction) -> float:
        return other.samples_per_s / now.samples_per_s

    return FilledBatch(
        batch,
        doubled,
        memory=gain(larger),
        devices=gain(_at_largest(setting, with_faster_devices(cluster))[1]),
        links=gain(_at_largest(setting, with_faster_links(cluster, 2.0))[1]),
        no_idle=1 / (1 - now.shares.get("bubble", 0.0)),
    )


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
    sizes = ((name, _size_of(name), None) for name in _COLOCATED)
    yield from _filled_table("model, devices", sizes)
    yield from paragraph(
        "So it comes out for 13B; 7B gains a little more from faster devices. At 33B and 65B, where"
        " every token gathers all weights, links give far more than devices, but a larger batch"
        " shares each gather among more samples and gives more still."
    )
    yield from paragraph(
        "The digest's other two scenarios are communication between unlike pools and scheduling"
        " for the reward model on one device:"
    )
    yield from _filled_table("what", _OTHERS)
    yield from paragraph(
        "One device that scores leaves the others idle, at 32 devices three quarters of the time:"
        " that is scheduling, as the digest has it. Unlike pools wait for each other, and get new"
        " weights over the Ethernet once per batch. The slower it is, the more faster links give"
        " and the less faster devices do; but here too a larger batch shares the transfer among"
        " more samples, and gives more still. The paper does not state the rate."
    )
    yield from paragraph(
        "`flexrlhf plan` is asked for a batch that is given, and may train it in several passes."
        " Then memory costs little: with twice as much and everything planned anew, the best plan"
        " for 72 samples a device of 256 tokens gains what follows, simulated. So the digest's"
        " scenario is one of the paper's way to run, not of the models; for a batch of the user's"
        " own `plan` says both numbers."
    )
    yield from _planned_table()


def _size_of(name: str) -> str:
    row = row_named(name)
    return f"{model_name(row['actor_model'])}, {row['n_gpus']}"


def _filled_table(what: str, cases: Iterable[tuple[str, str, str | None]]) -> list[str]:
    rows: list[list[str]] = []
    for name, words, between in cases:
        found = filled_batch(name, between)
        gains = (found.memory, found.devices, found.links, found.no_idle)
        batches = (str(found.batch), str(found.doubled))
        rows.append([words, *batches, *map(times, gains), found.bound_by])
    header = (what, "batch", "with twice the memory", "memory", "devices", "links")
    return table((*header, "no idle device", "bound by"), rows)


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


def _at_largest(setting: Setting, cluster: Cluster) -> tuple[int, Prediction]:
    """Samples per device, and an iteration with so many."""
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
    return batch, found
