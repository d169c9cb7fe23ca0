"""From a strategy's name and what the user has decided to the arrangements to choose from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final, cast

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import PlanError, nearest
from flexrlhf.core.names import PUBLISHED_SYSTEMS, Role, StrategyName
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Degrees, Refusal
from flexrlhf.planning.placement.choices import NO_CHOICES, Choices
from flexrlhf.planning.placement.layouts import parts_worth_trying
from flexrlhf.planning.placement.strategies import STRATEGY_RULES
from flexrlhf.planning.placement.strategies.custom import custom
from flexrlhf.planning.placement.strategies.guideline import guideline

_PARALLEL: Final = ("tensor_parallel", "pipeline_parallel", "data_parallel")
_PARTS: Final = (*_PARALLEL, "shard_devices", "generation_tensor_parallel")


def arrangements(
    strategy: str,
    spec: AlgorithmSpec,
    cluster: Cluster,
    choices: Choices = NO_CHOICES,
    *,
    weight_bytes: Mapping[Role, float] | None = None,
) -> list[Arrangement] | Refusal:
    """Returns where a strategy puts the roles, with the degrees that the user fixes.

    Args:
        strategy: one of `names.STRATEGIES`, or `guideline`. Where the user says where roles go,
            only `custom` has something to add.
        spec: the algorithm.
        cluster: the machines.
        choices: of the user.
        weight_bytes: of each frozen model; the guideline asks whether they fit one node.

    Raises:
        PlanError: the strategy is unknown, or what the user says cannot be had.
        ConfigError: the user names a device that the cluster lacks.
    """
    if strategy == "guideline":
        found = [guideline(spec, cluster, weight_bytes or {})]
    elif strategy == "custom":
        found = [custom(spec, cluster, choices)]
    elif strategy in STRATEGY_RULES:
        found = _on_all_or_part(cast("StrategyName", strategy), spec, cluster)
    else:
        known = (*STRATEGY_RULES, "custom", "guideline")
        raise PlanError(
            f"Unknown strategy {strategy!r}. {nearest(strategy, known)}".rstrip(),
            f"Known: {', '.join(known)}.",
            "Choose one of these.",
        )
    return found if isinstance(found, Refusal) else _with_degrees(found, choices.degrees)


def _on_all_or_part(
    strategy: StrategyName, spec: AlgorithmSpec, cluster: Cluster
) -> list[Arrangement] | Refusal:
    """Arrangements on the whole cluster, then those that leave a part of it unused.

    A published system takes all it gets.
    """
    rule = STRATEGY_RULES[strategy]
    whole = rule(spec, cluster)
    found = [] if isinstance(whole, Refusal) else list(whole)
    for part in () if strategy in PUBLISHED_SYSTEMS else parts_worth_trying(cluster):
        smaller = rule(spec, part)
        if not isinstance(smaller, Refusal):
            idle = _unused(cluster, part)
            found += [replace(held, note=f"{held.note} {idle}") for held in smaller]
    return found or whole


def _unused(cluster: Cluster, part: Cluster) -> str:
    """Says how many devices a part leaves out, and of which types where these differ."""
    types = [Counter(c.device_type(device).name for device in c.devices) for c in (cluster, part)]
    left = types[0] - types[1]
    named = f" ({', '.join(left)})" if len(types[0]) > 1 else ""
    return f"{left.total()} devices stay unused{named}."


def _with_degrees(
    found: Sequence[Arrangement], wanted: Mapping[Role, Degrees]
) -> list[Arrangement] | Refusal:
    """Adds the user's degrees to those arrangements that leave room for them."""
    if not wanted:
        return list(found)
    whys = [_contradiction(arrangement, wanted) for arrangement in found]
    fitting = [
        _with_fixed(arrangement, wanted)
        for arrangement, why in zip(found, whys, strict=True)
        if not why
    ]
    return fitting or Refusal(found[0].strategy, whys[0])


def _contradiction(arrangement: Arrangement, wanted: Mapping[Role, Degrees]) -> str:
    """Returns why an arrangement cannot have the wanted degrees, nothing where it can."""
    for role, degrees in wanted.items():
        if role not in arrangement.devices:
            return f"placement.roles.{role} is given, but {arrangement.strategy} has no {role}."
        fixed = arrangement.degrees_of(role)
        for key, value in degrees.items():
            if fixed.get(key, value) != value:
                return (
                    f"placement.roles.{role}.{key} = {value}, but {arrangement.strategy} has "
                    f"{fixed[key]}."
                )
        if why := _indivisible(role, len(arrangement.devices[role]), degrees):
            return why
    return ""


def _indivisible(role: Role, num_devices: int, degrees: Degrees) -> str:
    """Returns which degree does not divide the devices of a role, nothing where all do."""
    for key in _PARTS:
        part = degrees.get(key, 1)
        if num_devices % part:
            its = _counted(num_devices)
            return f"placement.roles.{role}.{key} = {part} does not divide its {its}."
    given = {key: degrees[key] for key in _PARALLEL if key in degrees}
    width = prod(given.values())
    is_whole = len(given) == len(_PARALLEL)
    if num_devices % width or (is_whole and width != num_devices):
        said = " x ".join(f"{key} {value}" for key, value in given.items())
        return f"placement.roles.{role}: {said} does not make its {_counted(num_devices)}."
    return ""


def _with_fixed(arrangement: Arrangement, wanted: Mapping[Role, Degrees]) -> Arrangement:
    fixed: dict[Role, dict[str, Any]] = {
        role: {**arrangement.fixed.get(role, {}), **wanted.get(role, {})}
        for role in (*arrangement.fixed, *wanted)
    }
    generation = fixed.get(arrangement.generating_role, {}).pop("generation", None)
    return replace(arrangement, fixed=fixed, generation=generation or arrangement.generation)


def _counted(num_devices: int) -> str:
    return "one device" if num_devices == 1 else f"{num_devices} devices"
