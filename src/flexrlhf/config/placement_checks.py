"""Checks that the section `placement` fits the algorithm and does not contradict itself.

What depends on the cluster (whether a ratio can be packed, whether degrees divide devices) is found
when the plan is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final

from flexrlhf.config.placement import Placement, Pools, RoleDegrees, Share, exact_share
from flexrlhf.config.problems import Problem, absence, mistake
from flexrlhf.config.resolution import placement_of, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import SHADOWS, Role

_NAME: Final = "algorithm.name"
_FREE: Final = ("auto", "custom")
_OF_RATIO: Final = (*_FREE, "colocated", "interleaved_1")
_OF_POOLS: Final = (*_FREE, "disaggregated")


def check_placement(config: RunConfig) -> Iterator[Problem]:
    """Yields what in `placement` contradicts the algorithm or another key of the section."""
    placement, spec = placement_of(config), spec_of(config)
    yield from _check_strategy(placement)
    if placement.ratio is not None:
        yield from _check_ratio(placement.ratio, spec)
    if placement.pools is not None:
        yield from _check_pools(placement.pools, spec)
    yield from _check_devices(placement, spec)
    yield from _check_degrees(placement, spec)


def _check_strategy(placement: Placement) -> Iterator[Problem]:
    key, strategy = "placement.strategy", placement.strategy
    if placement.ratio is not None and placement.pools is not None:
        yield absence(
            "placement.ratio",
            "given beside placement.pools, which divide the same devices.",
            "Right: one of the two; a ratio inside a pool is placement.pools.NAME.ratio.",
            "placement.pools",
        )
    for name, is_given, fitting in (
        ("ratio", placement.ratio is not None, _OF_RATIO),
        ("pools", placement.pools is not None, _OF_POOLS),
    ):
        if is_given and strategy not in fitting:
            yield mistake(
                key,
                strategy,
                f"it does not leave placement.{name} to you.",
                f"Right: {', '.join(fitting)}; or no placement.{name}.",
                f"placement.{name}",
            )
    if strategy == "custom" and not (placement.ratio or placement.pools or placement.device_lists):
        yield mistake(
            key,
            strategy,
            "nothing says where the roles go.",
            "Right: with placement.ratio, placement.pools or placement.devices.",
        )
    if placement.device_lists and strategy in ("guideline", "all"):
        yield mistake(
            key,
            strategy,
            "it does not leave placement.devices to you.",
            f"Right: {', '.join(_FREE)}, or no placement.devices.",
            "placement.devices",
        )


def _check_ratio(ratio: Sequence[Share], spec: AlgorithmSpec) -> Iterator[Problem]:
    yield from _check_shares("placement.ratio", ratio)
    if len(ratio) != len(spec.models):
        trunk = ", one trunk for actor and critic" if spec.shares_trunk else ""
        without = f"; {', '.join(spec.functions)} is no model here" if spec.functions else ""
        yield mistake(
            "placement.ratio",
            ratio,
            f"{len(ratio)} shares for the {len(spec.models)} models of {spec.name}.",
            f"Right: one each for {', '.join(spec.models)}{trunk}{without}.",
            _NAME,
            "algorithm.share_actor_critic",
            "algorithm.kl_coef",
            "model",
        )


def _check_shares(key: str, shares: Sequence[Share]) -> Iterator[Problem]:
    for position, share in enumerate(shares):
        if exact_share(share) > 1:
            yield mistake(f"{key}.{position}", share, "more than all.", "Right: at most 1.")


def _check_pools(pools: Pools, spec: AlgorithmSpec) -> Iterator[Problem]:
    key, given = "placement.pools", pools.sections
    if not spec.generates:
        yield absence(
            key,
            f"given, but {spec.name} generates nothing that a pool of its own could.",
            "Right: placement.ratio or placement.devices.",
            _NAME,
        )
    shares = {name: exact_share(pool.share) for name, pool in given.items()}
    total = sum(shares.values(), Fraction())
    if total != 1:
        written = {name: pool.share for name, pool in given.items()}
        yield mistake(
            key,
            written,
            f"the shares sum to {float(total):g}.",
            "Right: they sum to 1; a third is written 1/3.",
        )
    for name, pool in given.items():
        yield from _check_shares(f"{key}.{name}.ratio", pool.ratio or ())


def _check_devices(placement: Placement, spec: AlgorithmSpec) -> Iterator[Problem]:
    given = placement.device_lists
    yield from _check_known("placement.devices", placement.own_lists, spec)
    for role, devices in given.items():
        if len(set(devices)) < len(devices):
            yield mistake(
                f"placement.devices.{role}",
                devices,
                "a device stands there twice.",
                "Right: each device once.",
            )
    missing = [role for role in spec.models if role not in given]
    if given and missing and not (placement.ratio or placement.pools):
        yield absence(
            "placement.devices",
            f"no place for {', '.join(missing)}.",
            "Right: a list for each model, or placement.ratio or placement.pools for the others.",
            _NAME,
            "model",
        )


def _check_degrees(placement: Placement, spec: AlgorithmSpec) -> Iterator[Problem]:
    given, lists = placement.degrees, placement.device_lists
    yield from _check_known("placement.roles", given, spec)
    for role, degrees in given.items():
        key = f"placement.roles.{role}"
        if role in lists and degrees.devices not in (None, lists[role]):
            yield mistake(
                f"{key}.devices",
                degrees.devices,
                f"placement.devices.{role} says otherwise.",
                "Right: one of the two.",
                f"placement.devices.{role}",
            )
        yield from _check_generation(key, role, degrees)


def _check_generation(key: str, role: Role, degrees: RoleDegrees) -> Iterator[Problem]:
    tensor = degrees.generation_tensor_parallel
    for name, value in (
        ("generation", degrees.generation),
        ("generation_tensor_parallel", tensor),
    ):
        if value is not None and role not in ("actor", "shadow_actor"):
            yield mistake(
                f"{key}.{name}",
                value,
                f"the {role} does not generate.",
                "Right: for actor or shadow_actor.",
            )
    if tensor is not None and degrees.generation in ("gathered", "per_token"):
        yield mistake(
            f"{key}.generation_tensor_parallel",
            tensor,
            f"weights that are {degrees.generation} are whole on each device.",
            "Right: with generation: tensor_parallel.",
            f"{key}.generation",
        )


def _check_known(key: str, given: Mapping[Role, object], spec: AlgorithmSpec) -> Iterator[Problem]:
    """Yields roles that the algorithm has not, or has no shadow of."""
    shadows = [SHADOWS[role] for role in spec.trained if spec.generates and role in SHADOWS]
    known = [*spec.roles, *shadows]
    for role in given:
        if role not in known:
            yield absence(
                f"{key}.{role}",
                f"given, but {spec.name} has no such role.",
                f"Roles here: {', '.join(known)}. Remove the key.",
                _NAME,
                "algorithm.share_actor_critic",
                "algorithm.kl_coef",
                "model",
            )
