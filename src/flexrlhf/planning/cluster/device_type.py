"""DeviceType: what one kind of device can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from flexrlhf.core.errors import ConfigError, nearest

NUMBER_TYPES: Final = (
    "float64",
    "float32",
    "tensorfloat32",
    "float16",
    "bfloat16",
    "float8",
)
_NEXT_BEST: Final[Mapping[str, str]] = {
    "float8": "bfloat16",
    "bfloat16": "float16",
    "float16": "float32",
    "tensorfloat32": "float32",
}
"""What carries out a number type for which a device has no units; V100 has none for bfloat16."""


@dataclass(frozen=True, slots=True)
class DeviceType:
    """One kind of device; the vendor's peaks, which no program reaches."""

    name: str
    memory_bytes: int
    """What a program can allocate, its own context included: a GPU of 80 GB shows about 85e9."""
    memory_bandwidth: float
    """Bytes/s."""
    flops: Mapping[str, float] = field(hash=False)
    """FLOP/s of dense matrix products per number type; one without units in hardware is absent."""
    host_bandwidth: float
    """Bytes/s between the device and its host, in one direction."""
    price_per_hour: float | None
    """USD, on demand; None where no public price is known."""
    source: str

    def peak_flops(self, dtype: str) -> float:
        """Returns the dense peak in FLOP/s.

        A type without units of its own runs on those of the next wider one: float8 on bfloat16,
        bfloat16 on float16, that on float32.

        Raises:
            ConfigError: the type is unknown, or the device has no such units.
        """
        if dtype not in NUMBER_TYPES:
            raise ConfigError(
                f"{dtype!r} is no number type. {nearest(dtype, NUMBER_TYPES)}".rstrip(),
                f"Known: {', '.join(NUMBER_TYPES)}.",
                "Choose one of these.",
            )
        units = dtype
        while units not in self.flops and units in _NEXT_BEST:
            units = _NEXT_BEST[units]
        if units not in self.flops:
            raise ConfigError(
                f"No peak is known of {self.name} for {dtype}.",
                f"It has: {', '.join(self.flops)}.",
                "Choose one of these, or give the device under `devices` of the cluster file.",
            )
        return self.flops[units]
