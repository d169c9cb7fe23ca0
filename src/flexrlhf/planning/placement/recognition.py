"""Which strategy a layout is, where a user gives the layout and not the name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role, StrategyName
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.independent import independent_models


@dataclass(frozen=True, slots=True)
class _Layout:
    """Models on devices, shadows included, functions left out."""

    spec: AlgorithmSpec
    cluster: Cluster
    on: Mapping[Role, frozenset[int]]

    @property
    def main(self) -> frozenset[int]:
        """The devices of the first trained role."""
        return self.on[self.spec.trained[0]]

    def all_on_main(self, *, but: tuple[Role, ...] = ()) -> bool:
        """Whether every model stands where the first trained role does, some left out."""
        return all(devices == self.main for role, devices in self.on.items() if role not in but)


def strategy_of(
    spec: AlgorithmSpec, cluster: Cluster, placed: Mapping[Role, tuple[int, ...]]
) -> StrategyName:
    """Returns the strategy that puts roles where they are; `custom` where none does."""
    on: dict[Role, frozenset[int]] = {
        role: frozenset(devices) for role, devices in placed.items() if role not in spec.functions
    }
    layout = _Layout(spec, cluster, on)
    for name, fits in _RULES.items():
        if fits(layout):
            return name
    return "custom"


def _is_disaggregated(layout: _Layout) -> bool:
    trained = frozenset[int]().union(*(layout.on[role] for role in layout.spec.trained))
    serving = [devices for role, devices in layout.on.items() if role not in layout.spec.trained]
    return "shadow_actor" in layout.on and not any(trained & devices for devices in serving)


def _is_interleaved_1(layout: _Layout) -> bool:
    models = independent_models(layout.spec)
    parts = [layout.on[role] for role in models]
    is_divided = frozenset[int]().union(*parts) == layout.main
    is_divided = is_divided and sum(map(len, parts)) == len(layout.main)
    return len(models) > 1 and is_divided and layout.all_on_main(but=models)


def _is_reward_on_one(layout: _Layout) -> bool:
    scored, frozen = layout.spec.scored, layout.spec.frozen
    models: tuple[Role, ...] = tuple(
        step.role for step in scored if step.operation == "rewards" and step.role in frozen
    )
    is_one = all(len(layout.on[role]) == 1 and layout.on[role] < layout.main for role in models)
    return bool(models) and is_one and layout.all_on_main(but=models)


def _is_interleaved_2(layout: _Layout) -> bool:
    if "actor" not in layout.on or len(independent_models(layout.spec)) < 2:
        return False
    home = layout.cluster.nodes_of(layout.on["actor"])
    others = frozenset[int]().union(*(d for role, d in layout.on.items() if role != "actor"))
    return len(home) == 1 and not others & set(home[0].devices)


_RULES: Final[Mapping[StrategyName, Callable[[_Layout], bool]]] = {
    "disaggregated": _is_disaggregated,
    "colocated": _Layout.all_on_main,
    "interleaved_1": _is_interleaved_1,
    "reward_on_one": _is_reward_on_one,
    "interleaved_2": _is_interleaved_2,
}
"""In the order in which they are tried; no layout with a shadow is another than the first."""
