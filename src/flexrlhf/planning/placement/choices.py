"""What a user has decided about the placement, as planning reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from flexrlhf.config.placement import Placement, RoleDegrees, exact_share
from flexrlhf.core.names import PoolName, Role
from flexrlhf.planning.placement.pools import PoolShare


@dataclass(frozen=True, slots=True)
class Choices:
    """The strategy, and what is fixed of layout and degrees."""

    strategy: str = "auto"
    """A strategy, or `auto`, `guideline`, `all`."""
    ratio: tuple[Fraction, ...] | None = None
    """One share per model of the algorithm."""
    pools: Mapping[PoolName, PoolShare] | None = None
    devices: Mapping[Role, tuple[int, ...]] = field(default_factory=dict[Role, tuple[int, ...]])
    """Device lists; they go before ratio and pools."""
    degrees: Mapping[Role, Mapping[str, Any]] = field(default_factory=dict[Role, Mapping[str, Any]])
    """Keys of `RolePlacement`, `devices` left out."""

    @property
    def has_layout(self) -> bool:
        """Whether the user says where roles go."""
        return self.ratio is not None or self.pools is not None or bool(self.devices)


NO_CHOICES: Final = Choices()


def choices_of(placement: Placement) -> Choices:
    """Returns what the config's section `placement` decides."""
    ratio, pools = placement.ratio, placement.pools
    return Choices(
        strategy=placement.strategy,
        ratio=None if ratio is None else tuple(map(exact_share, ratio)),
        pools=None
        if pools is None
        else {
            name: PoolShare(
                exact_share(pool.share),
                None if pool.ratio is None else tuple(map(exact_share, pool.ratio)),
            )
            for name, pool in pools.sections.items()
        },
        devices=placement.device_lists,
        degrees={
            role: given for role, wanted in placement.degrees.items() if (given := _degrees(wanted))
        },
    )


def _degrees(wanted: RoleDegrees) -> dict[str, Any]:
    return {
        key: value for key, value in dict(wanted).items() if value is not None and key != "devices"
    }
