"""What a config asks the planner, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, Literal

from flexrlhf.config.paths import STAGE
from flexrlhf.config.resolution import (
    RoleOrigin,
    batch_sizes,
    placement_of,
    role_origin,
    settled,
    spec_of,
)
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import ConfigError
from flexrlhf.core.names import EngineName, Role
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.classes import class_of
from flexrlhf.planning.costs.held_model import Head, HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.memory import Engine
from flexrlhf.planning.costs.role_shape import shape_of_role
from flexrlhf.planning.costs.shape import ModelShape
from flexrlhf.planning.costs.speculation import Speculation
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.search.request import PlanRequest

_ENGINES: Final[dict[EngineName, Engine]] = {
    "native": Engine(continuous=True, launches=20),
    "transformers": Engine(continuous=False, launches=30, copies_cache=True, shares_prompts=False),
    "vllm": Engine(continuous=True, has_own_copy=True),
    "sglang": Engine(continuous=True, has_own_copy=True),
}
"""What each engine's software does. Operations per layer: counted in a decode step of Llama."""
_SOFTWARE_YEAR: Final = 2025
"""Generation of the software for which plans are made."""


def request_from(
    config: RunConfig,
    cluster: Cluster,
    earlier: Mapping[str, PlanRequest] | None = None,
    *,
    runnable: bool = False,
) -> PlanRequest:
    """Returns the request of one stage.

    Args:
        config: one stage, or a plain run, resolved.
        cluster: the machines; the class of its first device gives the constants.
        earlier: requests of the stages before, by name, for `stage:NAME/ROLE`.
        runnable: look only at what workers can run.

    Raises:
        ConfigError: a model's sizes cannot be found.
    """
    spec, placement = spec_of(config), placement_of(config)
    models = dict(_models(config, spec, earlier or {}))
    return PlanRequest(
        spec=spec,
        cluster=cluster,
        models=models,
        workload=_workload(config, spec),
        engine=replace(
            _engine(config, cluster), speculation=_speculation(config, models.get("reference"))
        ),
        calibration=class_of(cluster.device_type(cluster.devices[0]).name, year=_SOFTWARE_YEAR),
        rollout_micro_batches=_parts(config, spec),
        sync_every=None if (every := config.weights.sync_every) == "auto" else every,
        max_staleness=config.weights.max_staleness,
        memory_fill=placement.memory_fill,
        shares_by_speed=placement.balance == "speed",
        objective=placement.objective,
        max_p99_iteration_s=placement.max_p99_iteration_s,
        runnable=runnable,
    )


def _engine(config: RunConfig, cluster: Cluster) -> Engine:
    """The engine asked for; native packs float32 weights on CPUs."""
    engine = _ENGINES[config.rollout.engine]
    are_cores = cluster.device_type(cluster.devices[0]).name == "cpu-core"
    rounds = spec_of(config).generates and config.rollout.weights == "int8"
    if rounds:
        _check_rounding(cluster)
    packs = (
        config.rollout.engine == "native"
        and not rounds
        and config.rollout.packed_weights
        and config.training.precision == "float32"
        and are_cores
    )
    return replace(engine, packs_weights=packs, rounds_weights=rounds)


def _check_rounding(cluster: Cluster) -> None:
    """Checks that weights can be in int8 on these devices; the rest is known without them."""
    others = {cluster.device_type(number).name for number in cluster.devices} - {"cpu-core"}
    if others:
        raise ConfigError(
            f"rollout.weights = int8, but the cluster has {', '.join(sorted(others))}.",
            "Weights in int8 are multiplied on CPUs.",
            "Set rollout.weights: same, or give a cluster of CPU cores.",
        )


def _speculation(config: RunConfig, reference: HeldModel | None) -> Speculation | None:
    """How the engine speculates; where a plan has to decide that, it does not yet."""
    rollout = config.rollout
    if rollout.speculation in ("none", "auto"):
        return None
    return Speculation(
        rollout.speculative_tokens,
        settled(rollout.speculative_acceptance),
        _draft(config, reference),
        holds_draft=rollout.draft_model != "reference",
    )


def _draft(config: RunConfig, reference: HeldModel | None) -> HeldModel | None:
    path = config.rollout.draft_model
    if path is None or path == "reference":
        return None if path is None else reference
    assert config.model.actor is not None, "algorithms that generate have an actor"
    return HeldModel(
        shape=shape_of_role("rollout.draft_model", path=path, shape=None, architecture=None),
        head="language_model",
        weight_dtype=config.model.actor.dtype,
        compute_dtype=config.training.precision,
        is_trained=False,
    )


def _parts(config: RunConfig, spec: AlgorithmSpec) -> int | None:
    """The parts of a rollout that the user asks for; one, which is the default, asks for none."""
    parts = config.rollout.micro_batches
    return parts if spec.generates and parts > 1 else None


def _models(
    config: RunConfig, spec: AlgorithmSpec, earlier: Mapping[str, PlanRequest]
) -> Iterator[tuple[Role, HeldModel]]:
    for role in spec.models:
        origin = role_origin(config, role)
        if origin is None:
            continue
        model = origin.model
        is_trained = role in spec.trained
        yield (
            role,
            HeldModel(
                shape=_shape(origin, earlier),
                head=_head(role, spec),
                weight_dtype=model.dtype,
                compute_dtype=config.training.precision,
                is_trained=is_trained,
                lora_rank=model.lora.rank if is_trained and model.lora else None,
                recomputes=config.training.gradient_checkpointing,
                kept_prefix_tokens=(
                    config.rollout.kept_prefix_tokens if spec.generates and role == "actor" else 0
                ),
            ),
        )


def _shape(origin: RoleOrigin, earlier: Mapping[str, PlanRequest]) -> ModelShape:
    model = origin.model
    if model.path is not None and model.path.startswith(STAGE):
        stage, _, role = model.path.removeprefix(STAGE).partition("/")
        models = {name: held.shape for name, held in earlier[stage].models.items()}
        return next(shape for name, shape in models.items() if name == role)
    return shape_of_role(
        origin.role, path=model.path, shape=model.shape, architecture=model.architecture
    )


def _head(role: Role, spec: AlgorithmSpec) -> Head:
    if role in ("critic", "reward"):
        return "value"
    return "both" if spec.shares_trunk and role == "actor" else "language_model"


def _workload(config: RunConfig, spec: AlgorithmSpec) -> Workload:
    sizes, rollout = batch_sizes(config), config.rollout
    sequences = 2 if spec.data == "preferences" else 1
    if spec.generates:
        prompt = _lengths(config.data.mean_prompt_tokens, config.data.max_prompt_tokens)
        response = _lengths(rollout.mean_new_tokens, rollout.max_new_tokens)
    else:
        prompt, response = Lengths.fixed(config.data.max_tokens), Lengths.fixed(0)
    return Workload(
        num_samples=sizes.samples_per_iteration * sequences,
        prompt=prompt,
        response=response,
        samples_per_prompt=rollout.samples_per_prompt if spec.generates else 1,
        mini_batches=sizes.num_mini_batches,
        epochs=sizes.epochs,
        generated=spec.generated_groups,
        speedup=rollout.speedup,
    )


def _lengths(mean: float | Literal["auto"], longest: int) -> Lengths:
    return Lengths.skewed(settled(mean), longest)
