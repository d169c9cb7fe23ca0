"""Whether a placement fits into memory, and if not, where it is tightest and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexrlhf.planning.placement.device_memory import (
    MEMORY_STAGES,
    DeviceKind,
    DeviceMemory,
    Need,
)

_GIB: Final = 2**30
_NUM_PARTS: Final = 3


@dataclass(frozen=True, slots=True)
class Fit:
    """The tightest device and stage of a placement."""

    kind: DeviceKind
    need: Need
    limit_bytes: float

    @property
    def is_feasible(self) -> bool:
        """Whether everything fits."""
        return self.need.total <= self.limit_bytes

    @property
    def spare_bytes(self) -> float:
        """Bytes left on the tightest device; below 0 what is lacking."""
        return self.limit_bytes - self.need.total

    def sentence(self) -> str:
        """Returns what is tightest, with numbers."""
        need, kind = self.need, self.kind
        work = f"{need.role} {_WORK[need.stage]}" if need.role else f"holding {_list(kind.roles)}"
        largest = sorted(need.parts.items(), key=lambda part: -part[1])[:_NUM_PARTS]
        parts = ", ".join(f"{use} {value / _GIB:.1f}" for use, value in largest)
        verdict = "leaves" if self.is_feasible else "lacks"
        return (
            f"{work} on device {kind.devices[0]} needs {need.total / _GIB:.1f} GiB of "
            f"{self.limit_bytes / _GIB:.1f} GiB ({parts}); {verdict} "
            f"{abs(self.spare_bytes) / _GIB:.1f} GiB"
        )


_WORK: Final = {
    "generate": "generation",
    "score": "scoring",
    "train": "training",
    "sync": "weight sync",
}


def check_fit(memory: DeviceMemory, *, fill: float) -> Fit:
    """Returns the tightest device and stage.

    Args:
        memory: of the placement.
        fill: share of a device's memory that may be used.
    """
    fits = [
        Fit(kind, memory.need(kind, stage), fill * kind.memory_bytes)
        for kind in memory.kinds
        for stage in MEMORY_STAGES
    ]
    return min(fits, key=lambda fit: fit.spare_bytes)


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)
