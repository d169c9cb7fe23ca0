"""What a strategy says: which role sits where, before degrees are chosen, or why it cannot say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flexrlhf.core.names import PUBLISHED_SYSTEMS, GenerationMode, Role, StrategyName

Degrees = Mapping[str, Any]
"""Keys of `RolePlacement` with their values."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Roles on devices, and the degrees that are no longer free."""

    strategy: StrategyName
    devices: Mapping[Role, tuple[int, ...]]
    """Every role of the algorithm, and shadows where other devices generate or score."""
    note: str
    """One sentence: what this is."""
    generation: GenerationMode | None = None
    """How sharded weights are present while generating; None leaves it open."""
    fixed: Mapping[Role, Degrees] = field(default_factory=dict[Role, Degrees])
    """Degrees that the strategy or the user fixes."""

    @property
    def is_export_only(self) -> bool:
        """Whether it can be planned and exported, but not run here."""
        return self.strategy in PUBLISHED_SYSTEMS

    @property
    def generating_role(self) -> Role:
        """The role that generates, in an algorithm that does."""
        return "shadow_actor" if "shadow_actor" in self.devices else "actor"

    def degrees_of(self, role: Role) -> dict[str, Any]:
        """Returns everything that is fixed for `role`, in the keys of `RolePlacement`."""
        fixed = dict(self.fixed.get(role, {}))
        if self.generation is not None and role == self.generating_role:
            fixed["generation"] = self.generation
        return fixed


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a strategy has no arrangement for an algorithm on a cluster."""

    strategy: StrategyName
    why: str
    """One sentence."""
