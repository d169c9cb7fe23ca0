"""Stages in a config document: the top level's keys and the stage's own become one document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flexrlhf.config.problems import Problem, absence, mistake
from flexrlhf.config.schema import STAGE_NAME
from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.errors import ConfigError

SOURCE_KEYS: Final = ("path", "shape", "init")
"""The keys of a role of which one says where its model comes from."""
_ORIGIN_KEYS: Final = (*SOURCE_KEYS, "architecture")
_ROLES: Final = ("actor", "critic", "reference", "reward")


@dataclass(frozen=True, slots=True)
class StageDocument:
    """One stage as a document of its own."""

    name: str
    own: dict[str, Any]
    """The keys that the stage itself gives."""
    merged: dict[str, Any]
    """The same on top of the keys of the top level."""

    def relabel(self, problem: Problem, top: Mapping[str, Any]) -> Problem:
        """Returns a problem of the merged document under the key where the user finds it."""
        parts = problem.key.split(".")
        if _holds(top, parts) and not _holds(self.own, parts):
            return problem
        key = f"stages.{self.name}.{problem.key}"
        return Problem(key, problem.wrong, problem.right, problem.concerns)


def split_stages(document: Mapping[str, Any]) -> tuple[list[StageDocument], list[Problem]]:
    """Returns the stages of a document that has the key `stages`, and what is wrong with them."""
    entries = document["stages"]
    if not isinstance(entries, list) or not entries:
        right = "Right: a list of stages, each with a name and its sections."
        return [], [mistake("stages", entries, "not a list of stages.", right)]
    top = {key: value for key, value in document.items() if key != "stages"}
    stages: list[StageDocument] = []
    problems: list[Problem] = []
    for position, entry in enumerate(entries):
        label = f"stages.{position}"
        found = list(_entry_problems(label, entry, [stage.name for stage in stages]))
        problems.extend(found)
        if not found:
            own = {key: value for key, value in entry.items() if key != "name"}
            stages.append(StageDocument(entry["name"], own, _merge_stage(top, own)))
    return stages, problems


def _entry_problems(label: str, entry: Any, names: list[str]) -> list[Problem]:
    if not isinstance(entry, dict):
        return [mistake(label, entry, "not a stage.", "Right: a section with a name.")]
    name = entry.get("name")
    key = f"{label}.name"
    right = "Right: a lower-case word such as sft."
    if name is None:
        return [absence(key, "missing.", right)]
    if not isinstance(name, str) or not re.fullmatch(STAGE_NAME, name):
        return [mistake(key, name, "not a lower-case word.", right)]
    if name in names:
        return [mistake(key, name, "the name of an earlier stage.", "Right: a name of its own.")]
    if "stages" in entry:
        return [absence(f"stages.{name}.stages", "a stage has no stages.", "Put them in one list.")]
    return []


def _merge_stage(top: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = _merge(_without_new_origins(top, own), own)
    return _without_unused_roles(merged, own)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lays one document over another: sections key by key, anything else as a whole."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, dict) and isinstance(under, dict):
            merged[key] = _merge(under, value)
        else:
            merged[key] = value
    return merged


def _without_new_origins(top: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Drops the origin of each role for which the stage names another one."""
    models, own_models = top.get("model"), own.get("model")
    if not isinstance(models, dict) or not isinstance(own_models, dict):
        return dict(top)
    kept = dict(models)
    for role, own_model in own_models.items():
        model = models.get(role)
        if (
            isinstance(model, dict)
            and isinstance(own_model, dict)
            and set(own_model) & {*SOURCE_KEYS}
        ):
            kept[role] = {key: value for key, value in model.items() if key not in _ORIGIN_KEYS}
    return {**top, "model": kept}


def _without_unused_roles(merged: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Drops roles of the top level that the stage's algorithm does not have."""
    models, algorithm = merged.get("model"), merged.get("algorithm")
    if not isinstance(models, dict) or not isinstance(algorithm, dict):
        return merged
    try:
        spec = algorithm_spec(
            str(algorithm.get("name")),
            share_actor_critic=algorithm.get("share_actor_critic") is True,
        )
    except ConfigError:
        return merged  # the checks report it
    own_models = own.get("model")
    own_roles = set(own_models) if isinstance(own_models, dict) else set()
    unused = {role for role in _ROLES if role not in spec.roles and role not in own_roles}
    return {**merged, "model": {role: m for role, m in models.items() if role not in unused}}


def _holds(document: Any, parts: list[str]) -> bool:
    """Says whether a document gives a key, or a value in the place of the key's section."""
    for part in parts:
        if isinstance(document, list):
            return True
        if not isinstance(document, dict):
            return document is not None
        if part not in document:
            return False
        document = document[part]
    return True
