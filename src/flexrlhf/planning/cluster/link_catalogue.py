"""The links that are known by name, with the source of every number.

Latencies are those with which NCCL estimates a step of a ring in its protocol LL128, the one for
messages of middle size (its src/graph/tuning.cc, commit 01afd20: NVLink 1.9, PCI 2.5, network 4.0
microseconds). Network names follow `KIND-[ADAPTERSx]RATE`: `InfiniBand-8x200G` is a node with
eight adapters of 200 Gbit/s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from flexrlhf.core.errors import ConfigError, nearest
from flexrlhf.planning.cluster.link import Link

_NCCL: Final = "latency: NCCL, ring, LL128"
_PCIE: Final = "PCI Express, 16 lanes after line code; latency: NCCL, ring, LL128"


def _inside(name: str, gbytes_s: float, latency_us: float, source: str) -> Link:
    return Link(name, gbytes_s * 1e9, latency_us * 1e-6, source)


INSIDE_LINKS: Final[Mapping[str, Link]] = {
    link.name: link
    for link in (
        _inside("NVLink2", 150.0, 1.9, f"V100: 6 links of 25 GB/s; {_NCCL}"),
        _inside("NVLink3", 300.0, 1.9, f"A100: 12 links of 25 GB/s; {_NCCL}"),
        _inside("NVLink3-A800", 200.0, 1.9, f"A800: 400 GB/s both ways together; {_NCCL}"),
        _inside("NVLink4", 450.0, 1.9, f"H100: 18 links of 25 GB/s; {_NCCL}"),
        _inside("NVLink4-H800", 200.0, 1.9, f"H800: 400 GB/s both ways together; {_NCCL}"),
        _inside("NVLink5", 900.0, 1.9, f"B200: 18 links of 50 GB/s; {_NCCL}"),
        _inside("PCIe3", 15.754, 2.5, f"8 GT/s; {_PCIE}"),
        _inside("PCIe4", 31.508, 2.5, f"16 GT/s; {_PCIE}"),
        _inside("PCIe5", 63.015, 2.5, f"32 GT/s; {_PCIE}"),
        _inside(
            "shared-memory",
            5.0,
            50.0,
            "an assumption: processes that copy through memory, read and written at the 10 GB/s of"
            " a core; a system call, a wake-up and Python on either side",
        ),
    )
}
"""Between the devices of a node, per device."""

_NETWORK_LATENCY_S: Final[Mapping[str, tuple[float, str]]] = {
    "InfiniBand": (4.0e-6, _NCCL),
    "RoCE": (4.0e-6, f"{_NCCL}, as InfiniBand"),
    "Ethernet": (20.0e-6, "latency: an assumption, TCP through two kernels"),
}
_RATES: Final = (1, 10, 25, 40, 50, 100, 200, 400, 800)
"""Gbit/s of one adapter."""
_MOST_ADAPTERS: Final = 16
_NETWORK: Final = re.compile(r"([A-Za-z]+)-(?:(\d{1,2})x)?(\d{1,4})G")


def link_type(name: str) -> Link:
    """Returns a link by name: `NVLink4`, `PCIe4`, `InfiniBand-200G`, `RoCE-8x400G`.

    Raises:
        ConfigError: there is no such link.
    """
    link = INSIDE_LINKS.get(name) or _network(name)
    if link is None:
        known = (*INSIDE_LINKS, *_one_adapter_names())
        raise ConfigError(
            f"Link {name!r} is unknown. {nearest(name, known)}".rstrip(),
            f"Known: {', '.join(INSIDE_LINKS)}; between nodes {', '.join(_NETWORK_LATENCY_S)} with"
            f" a rate of {', '.join(map(str, _RATES))} Gbit/s and up to {_MOST_ADAPTERS} adapters,"
            " such as InfiniBand-200G or InfiniBand-8x200G.",
            "Choose one of these, or give {bandwidth_gbytes_s: ..., latency_us: ...}.",
        )
    return link


def is_inside_link(name: str) -> bool:
    """Says whether a name means a link that joins devices of one node only."""
    return name in INSIDE_LINKS


def _network(name: str) -> Link | None:
    match = _NETWORK.fullmatch(name)
    if match is None or match[1] not in _NETWORK_LATENCY_S:
        return None
    adapters, rate = int(match[2] or 1), int(match[3])
    if rate not in _RATES or not 1 <= adapters <= _MOST_ADAPTERS:
        return None
    latency_s, source = _NETWORK_LATENCY_S[match[1]]
    words = f"{adapters} x {rate} Gbit/s of {match[1]}; {source}"
    return Link(name, adapters * rate * 1e9 / 8, latency_s, words)


def _one_adapter_names() -> list[str]:
    return [f"{kind}-{rate}G" for kind in _NETWORK_LATENCY_S for rate in _RATES]
