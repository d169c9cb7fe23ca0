"""Which role sits on which devices under the strategies of the published systems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role, kind_of
from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import Case
from flexrlhf.planning.cases.roles import OLD
from flexrlhf.planning.cases.systems import System
from flexrlhf.planning.cases.vocabulary import STRATEGIES
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.held_model import HeldModel

_APART: Final = ("disaggregated", "async_disaggregated", "split")
_SPLIT_SHARES: Final = {"critic": 1.0, "reference": 1.0, "reward": 1.0}
"""Parts of the devices that neither generate nor train the actor."""
_WEIGHTS_FILL: Final = 0.8
_ENGINE_SHARE: Final = 4
"""Of a split's devices every fourth generates, one in eight is for each role that is not the actor.
An assumption: sources that name a split give reference and reward 1 of 8 devices each and the
engine 2 of 8; that the actor has more than the critic explains the times best."""

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


def place(
    strategy: str,
    spec: AlgorithmSpec,
    cluster: Cluster,
    pools: Pools,
    case: Case,
    system: System,
    models: Mapping[Role, HeldModel],
) -> Mapping[Role, Devices]:
    """Returns the devices of every role, shadows included."""
    if pools.generate:
        return _apart(spec, cluster, pools, case, system, models)
    if pools.other:
        return _others(spec, pools, pools.train, case)
    devices = cluster.devices
    placed: dict[Role, Devices] = dict.fromkeys(spec.roles, devices)
    half = len(devices) // 2
    if strategy in ("interleaved_1", "interleaved_2") and half:
        _set(placed, "reference", devices[:half])
        _set(placed, "reward", devices[half : 2 * half])
    if strategy == "interleaved_2":
        _set(placed, "actor", cluster.nodes[0].devices)
    if strategy == "reward_on_one":
        _set(placed, "reward", devices[-1:])
    return placed


def _apart(
    spec: AlgorithmSpec, cluster: Cluster, pools: Pools, case: Case, system: System,
    models: Mapping[Role, HeldModel],
) -> Mapping[Role, Devices]:
    if pools.other:
        placed = dict(_others(spec, pools, pools.train, case))
    elif system.shadow_scores and _hold(cluster, pools.generate, models):
        placed = dict.fromkeys(spec.roles, pools.generate)
        for role in spec.trained:
            placed[role] = pools.train
        if "critic" in placed:
            placed["shadow_critic"] = pools.generate
    else:
        placed = dict.fromkeys(spec.roles, pools.train)
    placed["shadow_actor"] = pools.generate
    return placed


def _hold(cluster: Cluster, devices: Devices, models: Mapping[Role, HeldModel]) -> bool:
    """Whether devices hold the weights of all models, shared out, and leave room for a cache."""
    whole = sum(model.weight_bytes for model in models.values()) / len(devices)
    return whole <= _WEIGHTS_FILL * cluster.device_type(devices[0]).memory_bytes


def _others(
    spec: AlgorithmSpec, pools: Pools, train: Devices, case: Case
) -> Mapping[Role, Devices]:
    """Critic, reference and reward on devices of their own, as far as these go round."""
    present = [role for role in spec.models if kind_of(role) in _SPLIT_SHARES and role != OLD]
    placed: dict[Role, Devices] = dict.fromkeys(spec.roles, train)
    shares = {role: _SPLIT_SHARES[kind_of(role)] for role in present}
    start, rest = 0, len(pools.other)
    for role in sorted(present, key=lambda role: shares[role]):
        stated = case.number(f"gpus_{role}")
        share = shares[role] / sum(shares[other] for other in shares)
        count = int(stated) if stated else max(1, round(share * len(pools.other)))
        count = max(1, min(count, rest - start)) if start < rest else 0
        placed[role] = pools.other[start : start + count] or pools.other[-1:]
        start += count
    return placed


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
        generate = max(1, total // _ENGINE_SHARE if None in (train, other) else free)
        taken.take("n_gpus_generate", generate, "a quarter, or what is left")
    if train is None:
        train = max(1, total - generate - (total * 3 // 8 if other is None else other))
        taken.take("n_gpus_train", train, "three eighths, or what is left")
    if other is None:
        other = max(0, total - train - generate)
    train = max(1, min(train, total - 1))
    is_shared = generate + train + other > total
    if is_shared:
        return Pools(devices[:train], (), devices[train : train + other])
    start = train + other
    return Pools(devices[:train], devices[start : start + generate], devices[train:start])


def _set(placed: dict[Role, Devices], role: Role, devices: Devices) -> None:
    if role in placed:
        placed[role] = devices


def _count(number: float | None) -> int | None:
    return None if number is None else int(number)
