"""The devices that are known by name, with the source of every number.

Peaks are the vendor's for dense products: where a data sheet prints the doubled number of sparse
ones, half of it stands here. Memory is what PyTorch reports as total capacity, read from
out-of-memory messages that users have posted; it lies 1 to 8 % under the capacity in GiB of the
same figure, since the driver keeps a part. Prices are on demand, per GPU of the largest node, and
change often: a cluster file may state its own.

Shorthand in the sources: DS is the vendor's data sheet; L is Lambda's price list of 2026-05-28;
R is RunPod's secure cloud, 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flexrlhf.core.errors import ConfigError, nearest
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.cluster.link_catalogue import link_type

_GIB: Final = 2**30
_PCIE_3: Final = link_type("PCIe3").bandwidth
_PCIE_4: Final = link_type("PCIe4").bandwidth
_PCIE_5: Final = link_type("PCIe5").bandwidth


def _device(
    name: str,
    *,
    memory_gib: float,
    memory_bandwidth: float,
    teraflops: Mapping[str, float],
    host_bandwidth: float,
    source: str,
    price: float | None = None,
) -> DeviceType:
    return DeviceType(
        name=name,
        memory_bytes=round(memory_gib * _GIB),
        memory_bandwidth=memory_bandwidth,
        flops={dtype: peak * 1e12 for dtype, peak in teraflops.items()},
        host_bandwidth=host_bandwidth,
        price_per_hour=price,
        source=source,
    )


def _ampere(scale: float = 1.0) -> dict[str, float]:
    """Peaks of an A100 with `scale` times its 108 multiprocessors."""
    peaks = {
        "float64": 9.7,
        "float32": 19.5,
        "tensorfloat32": 156.0,
        "float16": 312.0,
        "bfloat16": 312.0,
    }
    return {dtype: scale * peak for dtype, peak in peaks.items()}


def _hopper(float64: float = 33.5) -> dict[str, float]:
    """Peaks of an H100 SXM5 with 132 multiprocessors."""
    return {
        "float64": float64,
        "float32": 66.9,
        "tensorfloat32": 494.7,
        "float16": 989.4,
        "bfloat16": 989.4,
        "float8": 1978.9,
    }


_TABLE: Final = (
    _device(
        "V100-32G",
        memory_gib=31.73,
        memory_bandwidth=900e9,
        teraflops={"float64": 7.8, "float32": 15.7, "float16": 125.0},
        host_bandwidth=_PCIE_3,
        price=0.79,
        source="DS V100 SXM2; L, whose boards have 16 GB (8 for 6.32)",
    ),
    _device(
        "A100-40G",
        memory_gib=39.49,
        memory_bandwidth=1555e9,
        teraflops=_ampere(),
        host_bandwidth=_PCIE_4,
        price=1.99,
        source="DS A100 40 GB SXM4; L",
    ),
    _device(
        "A100-64G",
        memory_gib=63.42,
        memory_bandwidth=1640e9,
        teraflops=_ampere(scale=124 / 108),
        host_bandwidth=_PCIE_4,
        source="CINECA's description of Leonardo: 124 multiprocessors, HBM2e at 1.64 TB/s; peaks"
        " are those of the A100, scaled",
    ),
    _device(
        "A100-80G",
        memory_gib=79.15,
        memory_bandwidth=2039e9,
        teraflops=_ampere(),
        host_bandwidth=_PCIE_4,
        price=2.79,
        source="DS A100 80 GB SXM4; L (8 for 22.32)",
    ),
    _device(
        "A800-80G",
        memory_gib=79.15,
        memory_bandwidth=2039e9,
        teraflops=_ampere(),
        host_bandwidth=_PCIE_4,
        source="DS A800 80 GB SXM4: an A100 with 400 GB/s of NVLink; memory as there",
    ),
    _device(
        "L40S-48G",
        memory_gib=44.40,
        memory_bandwidth=864e9,
        teraflops={
            "float32": 91.6,
            "tensorfloat32": 183.0,
            "float16": 362.05,
            "bfloat16": 362.05,
            "float8": 733.0,
        },
        host_bandwidth=_PCIE_4,
        price=1.09,
        source="DS L40S; R",
    ),
    _device(
        "A6000-48G",
        memory_gib=47.40,
        memory_bandwidth=768e9,
        teraflops={
            "float32": 38.7,
            "tensorfloat32": 77.4,
            "float16": 154.8,
            "bfloat16": 154.8,
        },
        host_bandwidth=_PCIE_4,
        price=1.09,
        source="DS RTX A6000 and NVIDIA's GA102 white paper; L",
    ),
    _device(
        "H100-80G",
        memory_gib=79.18,
        memory_bandwidth=3350e9,
        teraflops=_hopper(),
        host_bandwidth=_PCIE_5,
        price=3.99,
        source="DS H100 SXM5; L (8 for 31.92)",
    ),
    _device(
        "H800-80G",
        memory_gib=79.18,
        memory_bandwidth=3350e9,
        teraflops=_hopper(float64=1.0),
        host_bandwidth=_PCIE_5,
        source="DS H800 SXM5: an H100 with 400 GB/s of NVLink; memory as there",
    ),
    _device(
        "H20-96G",
        memory_gib=95.0,
        memory_bandwidth=4000e9,
        teraflops={
            "float64": 1.0,
            "float32": 44.0,
            "tensorfloat32": 74.0,
            "float16": 148.0,
            "bfloat16": 148.0,
            "float8": 296.0,
        },
        host_bandwidth=_PCIE_5,
        source="H20's published figures (no data sheet is public); memory: nvidia-smi's 97,871 MiB"
        " less what drivers keep",
    ),
    _device(
        "H200-141G",
        memory_gib=139.80,
        memory_bandwidth=4800e9,
        teraflops=_hopper(),
        host_bandwidth=_PCIE_5,
        price=4.59,
        source="DS H200 SXM; R",
    ),
    _device(
        "GH200",
        memory_gib=95.0,
        memory_bandwidth=4000e9,
        teraflops=_hopper(),
        host_bandwidth=450e9,
        price=2.29,
        source="DS GH200 with 96 GB of HBM3; NVLink-C2C to the host: 900 GB/s, half in each"
        " direction; memory: nvidia-smi's 97,871 MiB less what drivers keep; L",
    ),
    _device(
        "GB200",
        memory_gib=184.31,
        memory_bandwidth=8000e9,
        teraflops={
            "float64": 40.0,
            "float32": 80.0,
            "tensorfloat32": 1250.0,
            "float16": 2500.0,
            "bfloat16": 2500.0,
            "float8": 5000.0,
        },
        host_bandwidth=225e9,
        source="DS GB200 NVL72, a GPU of 72; NVLink-C2C to the host: 900 GB/s for two GPUs, half in"
        " each direction",
    ),
    _device(
        "B200",
        memory_gib=178.35,
        memory_bandwidth=8000e9,
        teraflops={
            "float64": 37.0,
            "float32": 75.0,
            "tensorfloat32": 1125.0,
            "float16": 2250.0,
            "bfloat16": 2250.0,
            "float8": 4500.0,
        },
        host_bandwidth=_PCIE_5,
        price=6.69,
        source="DS HGX B200, a GPU of 8; L (8 for 53.52)",
    ),
    _device(
        "A10",
        memory_gib=22.06,
        memory_bandwidth=600e9,
        teraflops={
            "float32": 31.2,
            "tensorfloat32": 62.5,
            "float16": 125.0,
            "bfloat16": 125.0,
        },
        host_bandwidth=_PCIE_4,
        price=1.29,
        source="DS A10; memory: nvidia-smi's 23,028 MiB less what drivers keep; L",
    ),
    _device(
        "RTX-4090",
        memory_gib=23.52,
        memory_bandwidth=1008e9,
        teraflops={
            "float32": 82.6,
            "tensorfloat32": 82.6,
            "float16": 165.2,
            "bfloat16": 165.2,
            "float8": 330.3,
        },
        host_bandwidth=_PCIE_4,
        price=0.69,
        source="NVIDIA's Ada white paper, products summed in float32; R",
    ),
    _device(
        "cpu-core",
        memory_gib=4.0,
        memory_bandwidth=10e9,
        teraflops={"float64": 0.048, "float32": 0.096},
        host_bandwidth=10e9,
        source="an assumption, not a product: two AVX2 units at 3 GHz (32 float32 operations in a"
        " cycle), a twentieth of 200 GB/s of DDR4 in eight channels, 4 GiB as clouds give per core",
    ),
)
DEVICE_TYPES: Final[Mapping[str, DeviceType]] = {kind.name: kind for kind in _TABLE}

_USUAL_LINKS: Final[Mapping[str, str]] = {
    "V100-32G": "NVLink2",
    "A100-40G": "NVLink3",
    "A100-64G": "NVLink3",
    "A100-80G": "NVLink3",
    "A800-80G": "NVLink3-A800",
    "L40S-48G": "PCIe4",
    "A6000-48G": "PCIe4",
    "H100-80G": "NVLink4",
    "H800-80G": "NVLink4-H800",
    "H20-96G": "NVLink4",
    "H200-141G": "NVLink4",
    "GH200": "NVLink4",
    "GB200": "NVLink5",
    "B200": "NVLink5",
    "A10": "PCIe4",
    "RTX-4090": "PCIe4",
    "cpu-core": "shared-memory",
}
"""The fastest link that devices of a type have among each other inside a node."""


def device_type(name: str) -> DeviceType:
    """Returns a device of the catalogue.

    Raises:
        ConfigError: the catalogue has no such device.
    """
    if name not in DEVICE_TYPES:
        raise ConfigError(
            f"Device {name!r} is not in the catalogue. {nearest(name, DEVICE_TYPES)}".rstrip(),
            f"Known: {', '.join(DEVICE_TYPES)}.",
            "Choose one of these, or describe your own under `devices` of the cluster file.",
        )
    return DEVICE_TYPES[name]


def usual_link(kind: DeviceType) -> Link:
    """Returns what joins devices of a type inside a node; for own types, the way over the host."""
    if kind.name in _USUAL_LINKS:
        return link_type(_USUAL_LINKS[kind.name])
    over_host = link_type("PCIe4")
    return Link(
        name="host",
        bandwidth=kind.host_bandwidth,
        latency_s=over_host.latency_s,
        source=f"the host bandwidth of {kind.name}; latency as {over_host.name}",
    )
