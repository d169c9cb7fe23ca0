"""One placement of a run, as the sections of a config that ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tiny_runs import GENERATING

Degrees = Mapping[str, Any]
"""Keys of `placement.roles.ROLE`."""
_ROLES: Final = {
    "ppo": ("actor", "critic", "reference", "reward"),
    "ppo-shared": ("actor", "reference", "reward"),
    "grpo": ("actor", "reference", "reward"),
    "grpo-functions": ("actor", "reference", "reward"),
    "grpo-once": ("actor", "reward"),
    "sft": ("actor",),
    "reward_model": ("reward",),
    "dpo": ("actor", "reference"),
}
_WHOLE: Final = {"tensor_parallel": 1, "pipeline_parallel": 1}
_WITHOUT_MODEL: Final = {"grpo-functions": ("reward",), "grpo-once": ("reward",)}
"""Roles that are functions alone, which nothing splits."""


@dataclass(frozen=True, slots=True)
class PlacedCase:
    """One placement, and what else is cut otherwise than in the run on one device."""

    name: str
    workers: int
    layout: Mapping[str, Any]
    """`strategy`, `ratio`, `pools` or `devices`."""
    nodes: int = 1
    trained: Degrees = field(default_factory=dict[str, Any])
    frozen: Degrees = field(default_factory=dict[str, Any])
    roles: Mapping[str, Degrees] = field(default_factory=dict[str, Degrees])
    """Go before `trained` and `frozen`."""
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    variants: tuple[str, ...] = GENERATING

    def sections(self, variant: str) -> dict[str, Any]:
        """Returns the sections of the config that make a variant run so."""
        return {
            **self.changes,
            "cluster": {"workers": self.workers, "groups": self.nodes},
            "placement": {**self._layout(variant), "roles": self._degrees(variant)},
        }

    def _layout(self, variant: str) -> dict[str, Any]:
        """Returns the layout without the lists of roles that the variant lacks."""
        roles = _ROLES[variant]
        layout = dict(self.layout)
        if "devices" in layout:
            has = {*roles, "shadow_actor", *({"shadow_critic"} if "critic" in roles else ())}
            layout["devices"] = {r: d for r, d in layout["devices"].items() if r in has}
        return layout

    def _degrees(self, variant: str) -> dict[str, Any]:
        """Returns every degree, so that the planner has nothing left to search."""
        trained = set(_ROLES[variant]) & {"actor", "critic"} or set(_ROLES[variant])
        shadows = {"shadow_actor", "shadow_critic"} if self._has_shadows else set[str]()
        if "critic" not in trained:
            shadows.discard("shadow_critic")
        found: dict[str, Any] = {}
        for role in (*_ROLES[variant], *sorted(shadows)):
            if role not in _WITHOUT_MODEL.get(variant, ()):
                given = self.trained if role in trained else self.frozen
                whole = {**_WHOLE, "zero_stage": 0, "offload": False}
                found[role] = {**whole, **given, **self.roles.get(role, {})}
        return found

    @property
    def _has_shadows(self) -> bool:
        has_lists = "shadow_actor" in self.layout.get("devices", {})
        return self.layout.get("strategy") == "disaggregated" or "pools" in self.layout or has_lists
