"""Checks of a config against what its algorithm needs: data, roles, rewards, groups."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from flexrlhf.config.cluster import can_train
from flexrlhf.config.model import RoleModel
from flexrlhf.config.problems import Problem, absence, mistake
from flexrlhf.config.resolution import spec_of
from flexrlhf.config.reward import RewardFunction
from flexrlhf.config.schema import RunConfig
from flexrlhf.config.stages import SOURCE_KEYS
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role
from flexrlhf.core.sources import STAGE

_NAME = "algorithm.name"
_STAGE_PATH = re.compile(STAGE + "([^/]+)/([^/]+)")


def check_needs(
    config: RunConfig, earlier: Mapping[str, AlgorithmSpec | None]
) -> Iterator[Problem]:
    """Yields what a config lacks or has too much of for its algorithm.

    Args:
        config: one stage, or a plain run, whose algorithm is built.
        earlier: specs of the stages before this one, by name; None where it is not known.
    """
    spec = spec_of(config)
    yield from _check_roles(config, spec)
    for role, model in _given_models(config):
        yield from _check_origin(role, model)
        yield from _check_stage_path(role, model, earlier)
    yield from _check_tokenizer(config, spec)
    yield from _check_data(config, spec)
    yield from _check_rewards(config, spec)
    if spec.has_groups and config.rollout.samples_per_prompt < 2:
        yield mistake(
            "rollout.samples_per_prompt",
            config.rollout.samples_per_prompt,
            f"{spec.name} compares the answers to one prompt.",
            "Right: at least 2.",
            _NAME,
        )


def is_for_planning_only(config: RunConfig) -> bool:
    """Says whether the config can be planned but not trained: for described machines, or a shape.

    A later stage may take its model from such a one, so that it has no shape itself.
    """
    has_shapes = any(model.shape is not None for _, model in _given_models(config))
    return not can_train(config.cluster) or has_shapes


def _given_models(config: RunConfig) -> Iterator[tuple[Role, RoleModel]]:
    models = config.model
    given: tuple[tuple[Role, RoleModel | None], ...] = (
        ("actor", models.actor),
        ("critic", models.critic),
        ("reference", models.reference),
        ("reward", models.reward),
    )
    for role, model in given:
        if model is not None:
            yield role, model


def _check_roles(config: RunConfig, spec: AlgorithmSpec) -> Iterator[Problem]:
    main = spec.trained[0]
    if main not in dict(_given_models(config)):
        yield absence(
            f"model.{main}",
            f"missing; {spec.name} trains it.",
            "Right: a path, a shape, or init: random with an architecture.",
            _NAME,
        )
    for role, _ in _given_models(config):
        if role not in spec.roles:
            why = (
                "a shared trunk holds the critic" if spec.shares_trunk else f"{spec.name} has none"
            )
            yield absence(
                f"model.{role}",
                f"given, but {why}.",
                f"Roles here: {', '.join(spec.roles)}. Remove the key.",
                _NAME,
                "algorithm.share_actor_critic",
            )


def _check_origin(role: Role, model: RoleModel) -> Iterator[Problem]:
    key = f"model.{role}"
    origins = [name for name in SOURCE_KEYS if getattr(model, name) is not None]
    if len(origins) != 1:
        found = f"has {' and '.join(origins)}" if origins else "does not say where it comes from"
        yield absence(key, f"{found}.", f"Right: exactly one of {', '.join(SOURCE_KEYS)}.")
    elif model.init is None and model.architecture is not None:
        yield absence(
            f"{key}.architecture", f"given beside {origins[0]}.", "It goes with init: random only."
        )
    elif model.init is not None and "model_type" not in (model.architecture or {}):
        yield absence(
            f"{key}.architecture",
            "init: random needs it, with model_type among its keys.",
            "Example: {model_type: llama, hidden_size: 64, num_hidden_layers: 2, ...}.",
        )


def _check_stage_path(
    role: Role, model: RoleModel, earlier: Mapping[str, AlgorithmSpec | None]
) -> Iterator[Problem]:
    key, path = f"model.{role}.path", model.path or ""
    if not path.startswith(STAGE):
        return
    match = _STAGE_PATH.fullmatch(path)
    if match is None:
        yield mistake(key, path, "not of the form stage:NAME/ROLE.", "Example: stage:sft/actor.")
        return
    stage, trained_role = match.groups()
    if stage not in earlier:
        before = ", ".join(earlier) or "none"
        yield mistake(key, path, f"no stage before is called {stage}.", f"Before: {before}.")
        return
    spec = earlier[stage]
    if spec is not None and trained_role not in spec.trained:
        trains = f"It trains: {', '.join(spec.trained)}."
        yield mistake(key, path, f"stage {stage} does not train a {trained_role}.", trains)


def _check_tokenizer(config: RunConfig, spec: AlgorithmSpec) -> Iterator[Problem]:
    main = spec.trained[0]
    model = dict(_given_models(config)).get(main)
    if model is not None and model.init is not None and model.tokenizer is None:
        yield absence(
            f"model.{main}.tokenizer",
            "missing; a model with init: random brings none.",
            "Right: the folder of a tokenizer.",
            _NAME,
            f"model.{main}.init",
        )


def _check_data(config: RunConfig, spec: AlgorithmSpec) -> Iterator[Problem]:
    sources: Mapping[str, Any] = {
        "prompts": config.data.prompts,
        "preferences": config.data.preferences,
        "supervised": config.data.supervised,
    }
    if sources[spec.data] is None and not is_for_planning_only(config):
        given = ", ".join(kind for kind, source in sources.items() if source) or "none"
        yield absence(
            f"data.{spec.data}",
            f"missing; {spec.name} reads {spec.data} (given: {given}).",
            f"Right: data.{spec.data}.path with a file, a folder or a reasoning_gym:TASK.",
            _NAME,
        )


def _check_rewards(config: RunConfig, spec: AlgorithmSpec) -> Iterator[Problem]:
    for position, function in enumerate(config.reward.functions):
        yield from _check_function(f"reward.functions.{position}", function)
    has_source = config.model.reward is not None or config.reward.functions
    if spec.generates and not has_source:
        yield absence(
            "reward.functions",
            f"empty, and there is no model.reward: {spec.name} has nothing to learn from.",
            "Right: a reward model, reward functions, or both.",
            _NAME,
            "model.reward",
        )


def _check_function(key: str, function: RewardFunction) -> Iterator[Problem]:
    if (function.name is None) == (function.path is None):
        yield absence(key, "needs a name or a path.", "Right: exactly one of the two.")
    elif function.path is not None and not re.fullmatch(r".+\.py:\w+", function.path):
        yield mistake(
            f"{key}.path",
            function.path,
            "not of the form FILE.py:FUNCTION.",
            "Example: my_rewards.py:score; built-in rewards are given by name.",
        )
