"""Profile: a machine as `flexrlhf profile` measured it, and its YAML form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from flexrlhf.config.yaml_text import read_yaml
from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.cluster.detection import POOL
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link_catalogue import link_type
from flexrlhf.planning.costs.profiled.constants import ProfiledCosts
from flexrlhf.planning.costs.profiled.costs_form import costs_document, costs_from
from flexrlhf.planning.costs.profiled.file_checks import FORM, check_profile
from flexrlhf.planning.costs.profiled.joined_machines import (
    JoinedMachines,
    joined_document,
    joined_from,
)
from flexrlhf.planning.costs.profiled.worker_cluster import profiled_cluster
from flexrlhf.planning.costs.profiled.worker_costs import WorkerCosts
from flexrlhf.planning.costs.profiled.worker_form import worker_document, workers_from


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
    workers: WorkerCosts | None = None
    """Of several processes with one thread each; None where they were not measured."""
    joined: JoinedMachines | None = None
    """Of a Ray cluster; None where none was joined."""

    @property
    def cluster(self) -> Cluster:
        """The machine as a cluster of one device."""
        costs = self.costs
        kind = DeviceType(
            name=f"{self.device} ({self.threads} threads)",
            memory_bytes=round(self.memory_bytes),
            memory_bandwidth=costs.memory.read_bandwidth,
            flops={costs.dtype: costs.most_flops},
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

    def with_workers(self, workers: WorkerCosts) -> Profile:
        """Returns the machine with what several processes cost there."""
        return replace(self, workers=workers)

    def workers_cluster(self, workers: int, nodes: int) -> Cluster:
        """Returns the machine as processes with a thread each, in equal groups that count as nodes.

        A core that several share is as fast as their part of it.

        Raises:
            ConfigError: the profile says nothing of processes, or the groups would not be equal.
        """
        if self.workers is None:
            raise ConfigError(
                f"cluster.workers = {workers}, but the profile says nothing of several processes.",
                "`flexrlhf profile` measures them where Ray is installed and the CPU computes.",
                "Install flexrlhf[ray] and measure anew, without --no-workers:"
                " flexrlhf profile --out profile.yaml",
            )
        return profiled_cluster(self.workers, self.memory_bytes, workers, nodes)

    def to_document(self) -> dict[str, Any]:
        """Returns the content of the file."""
        document = {
            "form": FORM,
            "made": dict(self.made),
            "machine": {
                "device": self.device,
                "threads": self.threads,
                "memory_bytes": self.memory_bytes,
                "dtype": self.costs.dtype,
            },
            **costs_document(self.costs),
        }
        if self.workers is not None:
            one_thread = costs_document(self.workers.costs)
            document["workers"] = worker_document(self.workers, one_thread)
        if self.joined is not None:
            document["joined"] = joined_document(self.joined)
        return document


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
    machine = values["machine"]
    section, dtype = values.get("workers"), machine["dtype"]
    workers = None if section is None else workers_from(section, lambda v: costs_from(v, dtype))
    return Profile(
        machine["device"],
        machine["threads"],
        machine["memory_bytes"],
        costs_from(values, dtype),
        values["made"],
        workers,
        joined_from(values["joined"]) if "joined" in values else None,
    )
