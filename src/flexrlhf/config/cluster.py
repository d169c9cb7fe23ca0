"""Section `cluster`: the machines, where they are not simply this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Discriminator, Field, Strict, Tag

from flexrlhf.config.section import NonNegative, Section, Text

NodeCount = Annotated[int, Strict(), Field(ge=1, le=10_000)]
DeviceCount = Annotated[int, Strict(), Field(ge=1, le=1024)]
Gibibytes = Annotated[float, Strict(), Field(gt=0, le=100_000)]
GigabytesPerSecond = Annotated[float, Strict(), Field(gt=0, le=100_000)]
Microseconds = Annotated[float, Strict(), Field(ge=0, le=1_000_000)]
TeraFlops = Annotated[float, Strict(), Field(gt=0, le=1_000_000)]


class OwnLink(Section):
    """A link that the catalogue does not have."""

    bandwidth_gbytes_s: GigabytesPerSecond
    """10^9 bytes/s in one direction: inside a node per device, between nodes per node."""
    latency_us: Microseconds = 10.0
    """Microseconds that one message takes at least."""


class NodeGroup(Section):
    """Nodes that are all alike."""

    pool: Text | None = None
    """Name of the group, its own in the cluster; null: the type of its devices."""
    count: NodeCount = 1
    """How many nodes."""
    devices: DeviceCount = 1
    """Devices in each node."""
    type: Text
    """A device of the catalogue, such as A100-80G, or one of `cluster.devices`."""
    link: Text | OwnLink | None = None
    """What joins the devices of a node, such as NVLink3; null: the fastest that the type has."""
    price_per_hour: NonNegative | None = None
    """USD per device; null: the catalogue's."""


class Links(Section):
    """The links between nodes, the same for every pool."""

    inside_pool: Text | OwnLink | None = None
    """Between nodes of one pool, such as InfiniBand-8x200G; needed if a pool has several."""
    between_pools: Text | OwnLink | None = None
    """Between nodes of two pools, such as Ethernet-100G; needed if there are several pools."""


class LinkPair(Section):
    """The link between the nodes of two pools."""

    between: tuple[Text, Text]
    """Two pools; the same one twice means between its own nodes."""
    link: Text | OwnLink
    """What joins them, such as RoCE-8x400G."""


class PeakTeraFlops(Section):
    """Peaks of dense matrix products, 10^12 operations/s; null: no units for it in hardware."""

    float32: TeraFlops
    """Plain 32-bit numbers."""
    tensorfloat32: TeraFlops | None = None
    """32-bit numbers, multiplied with 10 bits."""
    float16: TeraFlops | None = None
    """16-bit numbers with 10 bits of fraction."""
    bfloat16: TeraFlops | None = None
    """16-bit numbers with 7 bits of fraction; null: computed as float16."""
    float8: TeraFlops | None = None
    """8-bit numbers; null: computed as bfloat16."""
    float64: TeraFlops | None = None
    """64-bit numbers."""


class OwnDevice(Section):
    """A device that the catalogue does not have."""

    memory_gib: Gibibytes
    """2^30 bytes that a program can allocate."""
    memory_bandwidth_gbytes_s: GigabytesPerSecond
    """Peak of the device's memory, 10^9 bytes/s."""
    tflops: PeakTeraFlops
    """What it computes at most."""
    host_bandwidth_gbytes_s: GigabytesPerSecond = 31.5
    """Between the device and its host in one direction, 10^9 bytes/s; PCIe 4 has 31.5."""
    price_per_hour: NonNegative | None = None
    """USD; null: cost per sample is not shown."""


class ClusterDescription(Section):
    """The machines. In place of the section may stand `auto`, this machine, or a YAML file of it.

    Training takes the other forms; anything can be planned for.
    """

    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1)]
    """Groups of equal nodes; their devices are numbered through in this order."""
    links: Links | tuple[LinkPair, ...] | None = None
    """What joins nodes: one link for all pools, or a list with one for each two."""
    devices: dict[str, OwnDevice] = Field(default={})
    """Devices that the catalogue does not have, by name."""


class ProfiledMachine(Section):
    """This machine, as `flexrlhf profile` measured it."""

    profile: Text
    """The file that `flexrlhf profile` wrote: plans reckon with what it measured."""
    workers: DeviceCount | None = None
    """Processes with a core each, or a part of one; null: one process with all cores."""
    groups: NodeCount = 1
    """Equal groups of workers that count as machines of their own."""


class WorkersHere(Section):
    """This machine with several workers, a process each, in a Ray of their own."""

    workers: DeviceCount
    """Processes that hold a device each: a GPU where there are any, else a core."""
    groups: NodeCount = 1
    """Equal groups of workers that count as machines of their own, to try placements out."""


class RayCluster(Section):
    """The machines of a Ray cluster that is there already."""

    ray: Text
    """`auto` on a machine of the cluster, or the HOST:PORT that `ray start` printed."""
    workers: DeviceCount | None = None
    """At most so many workers; null takes every GPU, or every CPU where there is no GPU."""
    links: Text | OwnLink | None = None
    """What joins its machines, such as InfiniBand-8x200G; null: what the profile says, else
    Ethernet-10G is supposed."""
    profile: Text | None = None
    """The file that `flexrlhf profile --ray auto` wrote: plans reckon with what it measured."""


def _form_of(value: Any) -> str:
    for key, (name, form) in _FORMS.items():
        if isinstance(value, form) or (isinstance(value, dict) and key in value):
            return name
    return "described"


_FORMS: Final[Mapping[str, tuple[str, type[Section]]]] = {
    "ray": ("joined", RayCluster),
    "profile": ("profiled", ProfiledMachine),
    "workers": ("local", WorkersHere),
}
"""The key by which a form is known, the first that is there; its name is no key of any."""
ClusterSection = Annotated[
    Annotated[ClusterDescription, Tag("described")]
    | Annotated[ProfiledMachine, Tag("profiled")]
    | Annotated[RayCluster, Tag("joined")]
    | Annotated[WorkersHere, Tag("local")],
    Discriminator(_form_of),
]
"""Told apart by a key, so that mistakes are those of the form that was meant."""
ClusterSetting = str | ClusterDescription | ProfiledMachine | RayCluster | WorkersHere
"""`auto`, the path of a cluster file, or a section."""


def is_one_device(setting: ClusterSetting) -> bool:
    """Says whether `cluster` means one device of the machine that reads it."""
    if isinstance(setting, ProfiledMachine):
        return setting.workers is None
    return setting == "auto"


def can_train(setting: ClusterSetting) -> bool:
    """Says whether runs can be trained on what `cluster` means; anything can be planned for."""
    return setting == "auto" or isinstance(setting, ProfiledMachine | RayCluster | WorkersHere)
