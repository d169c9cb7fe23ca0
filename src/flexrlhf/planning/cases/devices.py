"""Which role sits on which devices under the strategies of the published systems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.names import Role, kind_of
from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import Case
from flexrlhf.planning.cases.roles import OLD, Roles
from flexrlhf.planning.cases.systems import System
from flexrlhf.planning.cases.vocabulary import STRATEGIES
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.layouts import rewards_hosted_apart

_APART: Final = ("disaggregated", "async_disaggregated", "split")
_WEIGHTS_FILL: Final = 0.8
_SPLIT: Final = {"critic": 2, "reference": 1, "reward": 1}
_SPLIT_ENGINE: Final = 4
"""Eighths of a split's devices for roles beside the actor, and its engine's part: every fourth.
Source: OpenRLHF's benchmark, 1:1:2:2:2 for reference, reward, actor, critic and engine."""

Devices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pools:
    """Devices by what they are for; `generate` is empty where the actor's own devices do it."""

    train: Devices
    generate: Devices = ()
    other: Devices = ()


def strategy_of(case: Case, taken: Assumptions) -> str:
    """Returns the strategy of a case; unstated it is `split` or `colocated`, as counts say."""
    stated = case.word("strategy")
    if stated in STRATEGIES:
        return stated
    found = "colocated"
    if case.number("n_gpus_generate") or case.metric == "weight_sync_time":
        found = "disaggregated"
    why = "no count says otherwise" if stated is None else f"{stated} is not in the list"
    return taken.take("strategy", found, why)


def pools_of(case: Case, strategy: str, cluster: Cluster, taken: Assumptions) -> Pools:
    """Returns the pools of a strategy under which roles are apart, else one of all devices."""
    devices = cluster.devices
    if strategy not in _APART or len(devices) == 1:
        return Pools(devices)
    total = len(devices)
    generate, train, other = (
        _count(case.number(f"n_gpus_{part}")) for part in ("generate", "train", "other")
    )
    if strategy == "split":
        return _split_pools(devices, generate, train, other, taken)
    if generate is None:
        rest = total - (train or 0) - (other or 0)
        generate = rest if train else max(1, total // 2)
        generate = taken.take("n_gpus_generate", max(1, generate), "what is left, or half")
    other = other or 0
    train = max(1, train or total - generate - other)
    generate = max(1, min(generate, total - train))
    other = max(0, min(other, total - train - generate))
    start = train + other
    return Pools(devices[:train], devices[start : start + generate], devices[train:start])


@dataclass(frozen=True, slots=True)
class Placing:
    """What the devices of a case's roles depend on."""

    case: Case
    system: System
    cluster: Cluster
    roles: Roles

    def devices(self, strategy: str, pools: Pools) -> Mapping[Role, Devices]:
        """Returns the devices of every role, shadows included."""
        if pools.generate:
            placed = dict(self._beside_generation(pools))
            placed["shadow_actor"] = pools.generate
            return placed
        if pools.other:
            return self._on_their_own(pools)
        return self._together(strategy)

    def _together(self, strategy: str) -> Mapping[Role, Devices]:
        devices = self.cluster.devices
        placed: dict[Role, Devices] = dict.fromkeys(self.roles.spec.roles, devices)
        half = len(devices) // 2
        moved: dict[Role, Devices] = {}
        if strategy in ("interleaved_1", "interleaved_2") and half:
            moved |= {"reference": devices[:half], "reward": devices[half : 2 * half]}
        if strategy == "interleaved_2":
            moved["actor"] = self.cluster.nodes[0].devices
        if strategy == "reward_on_one":
            if self.system.hosts_reward_apart and len(devices) > 1:
                return rewards_hosted_apart(placed, devices, ("reward",))
            moved["reward"] = devices[-1:]
        for role in placed:
            placed[role] = moved.get(role, devices)
        return placed

    def _beside_generation(self, pools: Pools) -> Mapping[Role, Devices]:
        """All roles but the shadow actor."""
        spec = self.roles.spec
        if pools.other:
            return self._on_their_own(pools)
        if not (self.system.shadow_scores and self._holds_all(pools.generate)):
            return dict.fromkeys(spec.roles, pools.train)
        placed: dict[Role, Devices] = dict.fromkeys(spec.roles, pools.generate)
        placed |= dict.fromkeys(spec.trained, pools.train)
        if "critic" in placed:
            placed["shadow_critic"] = pools.generate
        return placed

    def _on_their_own(self, pools: Pools) -> Mapping[Role, Devices]:
        """Critic, reference and reward on devices of their own, as far as these go round."""
        spec = self.roles.spec
        present: list[Role] = [r for r in spec.models if kind_of(r) in _SPLIT and r != OLD]
        placed: dict[Role, Devices] = dict.fromkeys(spec.roles, pools.train)
        start, total = 0, len(pools.other)
        parts = [_SPLIT[kind_of(role)] for role in present]
        for number, role in enumerate(present):
            stated = self.case.number(f"gpus_{role}")
            share = max(1, (total - start) * parts[number] // sum(parts[number:]))
            count = min(int(stated) if stated else share, total - start)
            placed[role] = pools.other[start : start + count] or pools.other[-1:]
            start += count
        return placed

    def _holds_all(self, devices: Devices) -> bool:
        """Whether devices hold the weights of all models, shared out, and room for a cache."""
        whole = sum(model.weight_bytes for model in self.roles.models.values()) / len(devices)
        return whole <= _WEIGHTS_FILL * self.cluster.device_type(devices[0]).memory_bytes


def _split_pools(
    devices: Devices,
    generate: int | None,
    train: int | None,
    other: int | None,
    taken: Assumptions,
) -> Pools:
    total = len(devices)
    if generate is None:
        free = total - (train or 0) - (other or 0)
        generate = max(1, total // _SPLIT_ENGINE if None in (train, other) else free)
        taken.take("n_gpus_generate", generate, "a quarter, or what is left")
    if train is None:
        train = max(1, total - generate - (total // 2 if other is None else other))
        taken.take("n_gpus_train", train, "a quarter, or what is left")
    if other is None:
        other = max(0, total - train - generate)
    train = max(1, min(train, total - 1))
    is_shared = generate + train + other > total
    if is_shared:
        return Pools(devices[:train], (), devices[train : train + other])
    start = train + other
    return Pools(devices[:train], devices[start : start + generate], devices[train:start])


def _count(number: float | None) -> int | None:
    return None if number is None else int(number)
