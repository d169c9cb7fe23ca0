"""What was asked: the run, its models and the machines, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.report.formats import format_bytes, format_number, format_ranges
from flexrlhf.report.markup import Html, element, join, table

_NUMBER_TYPE: Final = "bfloat16"
_OBJECTIVES: Final = {"throughput": "most samples per second", "cost": "most samples per dollar"}


def request_view(request: PlanRequest) -> Html:
    """Returns the run in a few sentences, and a table of its models."""
    sentences = element("p", " ".join(_sentences(request)))
    header = ("role", "model", "parameters", "weights", "held as", "what it does")
    rows = [
        (
            role,
            model.shape.name,
            _billions(model.num_params),
            format_bytes(model.weight_bytes),
            model.weight_dtype,
            _duty(model),
        )
        for role, model in request.models.items()
    ]
    return join([sentences, table(header, rows)])


def cluster_view(cluster: Cluster) -> Html:
    """Returns the nodes of each pool and the links between them."""
    header = ("pool", "nodes", "devices", "memory each", "bandwidth of it", "bfloat16 peak")
    rows = [
        (
            pool,
            f"{len(nodes)} × {len(nodes[0].devices)} {nodes[0].device.name}",
            format_ranges(device for node in nodes for device in node.devices),
            format_bytes(nodes[0].device.memory_bytes),
            _rate(nodes[0].device.memory_bandwidth),
            f"{format_number(nodes[0].device.peak_flops(_NUMBER_TYPE) / 1e12)} TFLOP/s",
        )
        for pool, nodes in cluster.pools.items()
    ]
    links = (element("li", line) for line in _links(cluster))
    return join([table(header, rows), element("ul", *links, class_="plain")])


def _sentences(request: PlanRequest) -> Iterator[str]:
    workload, spec = request.workload, request.spec
    prompts = workload.num_samples // workload.samples_per_prompt
    if spec.generates:
        each = "an answer" if workload.samples_per_prompt == 1 else "answers"
        count = "" if workload.samples_per_prompt == 1 else f"{workload.samples_per_prompt} "
        yield (
            f"{spec.name} on {format_number(prompts)} prompts an iteration, {count}{each} to each: "
            f"{format_number(workload.num_samples)} samples."
        )
        yield f"Prompts have {_length(workload.prompt)}, answers {_length(workload.response)}."
    else:
        yield f"{spec.name} on {format_number(workload.num_samples)} sequences an iteration."
        yield f"They have {_length(workload.prompt)}."
    steps = workload.mini_batches * workload.epochs
    yield f"{_count(steps, 'optimiser step')} an iteration."
    if spec.generates and (request.sync_every != 1 or request.max_staleness):
        every = request.sync_every
        said = "as often as is best" if every is None else f"every {_count(every, 'iteration')}"
        yield (
            f"New weights go to shadows {said}; answers may be "
            f"{_count(request.max_staleness, 'version')} old."
        )
    yield f"Wanted: {_OBJECTIVES[request.objective]},"
    yield f"with at most {request.memory_fill:.0%} of a device's memory filled."


def _duty(model: HeldModel) -> str:
    if not model.is_trained:
        return "frozen"
    return f"trains adapters of rank {model.lora_rank}" if model.lora_rank else "trained"


def _length(lengths: Lengths) -> str:
    if round(lengths.mean) == round(lengths.longest):
        return f"{format_number(round(lengths.longest))} tokens"
    mean, longest = round(lengths.mean), round(lengths.longest)
    return f"{format_number(mean)} tokens on average and at most {format_number(longest)}"


def _links(cluster: Cluster) -> Iterator[str]:
    pools = cluster.pools
    for pool, nodes in pools.items():
        of_pool = f" of {pool}" if len(pools) > 1 else ""
        if len(nodes[0].devices) > 1:
            yield f"Inside a node{of_pool}: {_link(nodes[0].link)} per device."
        if len(nodes) > 1:
            link = cluster.link_between(nodes[0], nodes[1])
            yield f"Between nodes{of_pool}: {_link(link)} per node."
    for first, second in _pairs(list(cluster.pools.values())):
        link = cluster.link_between(first, second)
        yield f"Between {first.pool} and {second.pool}: {_link(link)} per node."
    price = cluster.price_per_hour()
    if price is not None:
        yield f"All devices together cost {format_number(price)} USD an hour."


def _pairs(pools: Sequence[Sequence[Node]]) -> Iterable[tuple[Node, Node]]:
    return (
        (first[0], second[0]) for place, first in enumerate(pools) for second in pools[place + 1 :]
    )


def _link(link: Link) -> str:
    return f"{link.name}, {_rate(link.bandwidth)} in one direction"


def _rate(bytes_per_s: float) -> str:
    scale, unit = (1e12, "TB/s") if bytes_per_s >= 1e12 else (1e9, "GB/s")
    return f"{format_number(bytes_per_s / scale)} {unit}"


def _billions(count: float) -> str:
    scale, unit = (1e9, "billion") if count >= 1e9 else (1e6, "million")
    return f"{format_number(count / scale)} {unit}"


def _count(number: int, noun: str) -> str:
    return f"{format_number(number)} {noun}{'' if number == 1 else 's'}"
