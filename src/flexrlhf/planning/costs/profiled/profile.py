"""Profile: a machine as `flexrlhf profile` measured it, and its YAML form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from flexrlhf.config.yaml_text import read_yaml
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.detection import POOL
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link_catalogue import link_type
from flexrlhf.planning.costs.profiled.constants import (
    LogitCost,
    MemoryConstants,
    PassCost,
    ProfiledCosts,
    RowSpeed,
    UpdateCost,
    WidthSpeed,
)
from flexrlhf.planning.costs.profiled.file_checks import FORM, PARTS, check_profile


@dataclass(frozen=True, slots=True)
class Profile:
    """One machine as one device: the process of a run has all of it."""

    device: str
    """What its processor or GPU calls itself."""
    threads: int
    """That computed."""
    memory_bytes: float
    costs: ProfiledCosts
    made: Mapping[str, Any]
    """When, by what command, with which software: to read, not to reckon with."""

    @property
    def cluster(self) -> Cluster:
        """The machine as a cluster of one device."""
        costs = self.costs
        kind = DeviceType(
            name=f"{self.device} ({self.threads} threads)",
            memory_bytes=round(self.memory_bytes),
            memory_bandwidth=costs.memory.read_bandwidth,
            flops={costs.dtype: max(speed.speed for speed in costs.rows)},
            host_bandwidth=costs.memory.read_bandwidth,
            price_per_hour=None,
            source="measured by flexrlhf profile",
        )
        return Cluster((Node(0, kind, (0,), link_type("shared-memory"), POOL),), {})

    def scaled_to(self, threads: int, memory_bytes: float) -> Profile:
        """Returns a machine of the same kind with another number of threads.

        What computes is faster in proportion, the host's own part is not.
        """
        factor = threads / self.threads
        return Profile(
            f"a processor like {self.device}",
            threads,
            memory_bytes,
            self.costs.faster(factor),
            self.made,
        )

    def holding(self, process_bytes: float) -> Profile:
        """Returns the machine as a process sees it that holds so much before its models."""
        memory = self.costs.memory
        held = max(memory.process_bytes, process_bytes)
        return replace(self, costs=replace(self.costs, memory=replace(memory, process_bytes=held)))

    def to_document(self) -> dict[str, Any]:
        """Returns the content of the file."""
        costs = self.costs
        return {
            "form": FORM,
            "made": dict(self.made),
            "machine": {
                "device": self.device,
                "threads": self.threads,
                "memory_bytes": self.memory_bytes,
                "dtype": costs.dtype,
            },
            "host_s": {
                "task": costs.task_s,
                "answer": costs.answer_s,
                "barrier_sample": costs.barrier_s,
                **_named("score", costs.score),
                **_named("train", costs.train),
                **_named("decode", costs.decode),
            },
            "update_s": {
                "step": costs.update.step_s,
                "tensor": costs.update.tensor_s,
                "param": costs.update.param_s,
            },
            "logit_s": {
                "score": costs.logits.score_s,
                "train": costs.logits.train_s,
                "draw": costs.logits.draw_s,
            },
            "memory": {
                "read_bytes_per_s": costs.memory.read_bandwidth,
                "cache_bytes_per_s": costs.memory.cache_bandwidth,
                "process_bytes": costs.memory.process_bytes,
                "allocator_overhead": costs.memory.overhead,
                "logit_copies": costs.memory.logit_copies,
            },
            "layer_flops_per_s": [
                {"width": speed.width, "score": speed.score, "train": speed.train}
                for speed in costs.widths
            ],
            "row_flops_per_s": [{"rows": s.rows, "speed": s.speed} for s in costs.rows],
        }


def load_profile(path: str | Path) -> Profile:
    """Returns the profile in a file.

    Raises:
        ConfigError: the file cannot be read, or lists everything that is wrong in it.
    """
    return profile_from(read_yaml(Path(path), "profile"), str(path))


def profile_from(document: Any, source: str) -> Profile:
    """Returns the profile that `to_document` wrote.

    Raises:
        ConfigError: lists every key that is unknown, missing or absurd.
    """
    check_profile(document, source)
    values = cast("dict[str, Any]", document)
    machine, host, memory = values["machine"], values["host_s"], values["memory"]
    costs = ProfiledCosts(
        dtype=machine["dtype"],
        task_s=host["task"],
        answer_s=host["answer"],
        barrier_s=host["barrier_sample"],
        score=_pass_cost("score", host),
        train=_pass_cost("train", host),
        decode=_pass_cost("decode", host),
        widths=tuple(WidthSpeed(**row) for row in values["layer_flops_per_s"]),
        rows=tuple(RowSpeed(**row) for row in values["row_flops_per_s"]),
        logits=LogitCost(**{f"{key}_s": seconds for key, seconds in values["logit_s"].items()}),
        update=UpdateCost(**{f"{key}_s": seconds for key, seconds in values["update_s"].items()}),
        memory=MemoryConstants(
            memory["read_bytes_per_s"],
            memory["cache_bytes_per_s"],
            memory["process_bytes"],
            memory["allocator_overhead"],
            memory["logit_copies"],
        ),
    )
    made = values["made"]
    return Profile(machine["device"], machine["threads"], machine["memory_bytes"], costs, made)


def _named(work: str, cost: PassCost) -> dict[str, float]:
    return {
        f"{work}_pass": cost.pass_s,
        f"{work}_layer": cost.layer_s,
        f"{work}_sequence": cost.sequence_s,
        f"{work}_sequence_layer": cost.sequence_layer_s,
    }


def _pass_cost(work: str, host: Mapping[str, float]) -> PassCost:
    return PassCost(*(host[f"{work}_{part}"] for part in PARTS))
