"""From a YAML file to a checked RunConfig, and back.

Everything that is wrong with a file is found in one go: what the schema refuses is left out, and
the checks that do not depend on it run on the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flexrlhf.config.agreement import check_agreement
from flexrlhf.config.needs import check_needs
from flexrlhf.config.overrides import apply_overrides
from flexrlhf.config.paths import resolve_paths
from flexrlhf.config.problems import (
    Key,
    Problem,
    absence,
    accepted,
    config_error,
    schema_problems,
)
from flexrlhf.config.resolution import spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.config.stages import split_stages
from flexrlhf.config.yaml_text import read_yaml, write_yaml
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import ConfigError


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads, completes and checks the config of a run.

    Paths in the file are looked for in the file's folder, then in the current one.

    Args:
        path: YAML file.
        overrides: texts `a.b=c` that replace values of the file.

    Raises:
        ConfigError: lists everything that is wrong with the file or the overrides.
    """
    file = Path(path)
    document = apply_overrides(_section(read_yaml(file), str(path)), overrides)
    return build_config(document, folder=file.parent, source=str(path))


def load_saved_config(path: str | Path) -> RunConfig:
    """Reads a config that `dump_config` wrote, as it is.

    It was checked before it was written, and a stage's own file names stages that it does not hold;
    so only its form is checked, and no path is looked for again.

    Raises:
        ConfigError: the file is missing, damaged, or of another version.
    """
    document = _section(read_yaml(Path(path)), str(path))
    config, problems = _parse(document)
    if problems or config is None:
        raise config_error(str(path), list(problems.values()))
    return config


def build_config(
    document: Mapping[str, Any], *, folder: Path | None = None, source: str = "config"
) -> RunConfig:
    """Completes and checks a config that is given as a mapping.

    Args:
        document: sections as a YAML file would give them.
        folder: where relative paths are looked for before the current folder.
        source: what to call the document in errors.

    Raises:
        ConfigError: lists everything that is wrong.
    """
    builder = _build_stages if "stages" in document else _build_plain
    config, problems = builder(document, folder)
    if problems or config is None:
        raise config_error(source, problems)
    return config


def dump_config(config: RunConfig) -> str:
    """Returns the config as YAML that loads back equal.

    A plain run, and each stage, is written out with all its keys; beside stages, the top level
    keeps only what differs from the defaults.
    """
    values = config.model_dump(mode="json")
    if not config.stages:
        del values["stages"]
        return write_yaml(values)
    shared = config.model_dump(mode="json", exclude={"stages"}, exclude_defaults=True)
    stages = [{"name": stage.pop("name"), **stage} for stage in values["stages"]]
    return write_yaml({**shared, "stages": stages})


def request_of(config: RunConfig) -> dict[str, Any]:
    """Returns what a config asks for besides the defaults, the algorithm's name always."""
    values = config.model_dump(mode="json", exclude_defaults=True)
    if not config.stages:
        return _with_algorithm(values, config.algorithm.name)
    stages = zip(values["stages"], config.stages, strict=True)
    return {**values, "stages": [_with_algorithm(v, stage.algorithm.name) for v, stage in stages]}


def _with_algorithm(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {**values, "algorithm": {"name": name, **values.get("algorithm", {})}}


def _section(document: Any, source: str) -> dict[str, Any]:
    if isinstance(document, dict) and document:
        return document
    raise ConfigError(
        f"{source} {'is empty' if not document else 'is not a mapping of sections'}.",
        "A config has sections such as algorithm, model, data, rollout and training.",
        "See docs/reference/config.md.",
    )


def _build_plain(
    document: Mapping[str, Any],
    folder: Path | None,
    earlier: Mapping[str, AlgorithmSpec | None] | None = None,
) -> tuple[RunConfig | None, list[Problem]]:
    """Returns the config of a plain run or stage, None if unusable, and all its problems."""
    config, problems = _parse(resolve_paths(dict(document), folder))
    if config is None:
        return None, list(problems.values())
    checks = _check(config, document, earlier or {})
    independent = [problem for problem in checks if not _depends_on(problem, problems)]
    return config, [*problems.values(), *independent]


def _build_stages(
    document: Mapping[str, Any], folder: Path | None
) -> tuple[RunConfig | None, list[Problem]]:
    top = {key: value for key, value in document.items() if key != "stages"}
    shared, shared_problems = _parse(resolve_paths(top, folder))
    stages, problems = split_stages(document)
    problems = [*shared_problems.values(), *problems]
    built: dict[str, RunConfig] = {}
    specs: dict[str, AlgorithmSpec | None] = {}
    for stage in stages:
        config, found = _build_plain(stage.merged, folder, specs)
        problems.extend(stage.relabel(problem, top) for problem in found)
        is_known = not any(problem.key.startswith("algorithm") for problem in found)
        specs[stage.name] = spec_of(config) if config and is_known else None
        if config:
            built[stage.name] = config
    if problems or shared is None:
        return None, problems
    values = [{"name": name, **_sections(config)} for name, config in built.items()]
    return RunConfig.model_validate({**_sections(shared), "stages": values}), []


def _sections(config: RunConfig) -> dict[str, Any]:
    return config.model_dump(mode="python", exclude={"stages"})


def _parse(document: dict[str, Any]) -> tuple[RunConfig | None, dict[Key, Problem]]:
    """Returns the config without what the schema refuses, and what that is."""
    try:
        return RunConfig.model_validate(document), {}
    except ValidationError as error:
        problems = schema_problems(error)
    rest = copy.deepcopy(document)
    for key in problems:
        _remove(rest, key)
    try:
        return RunConfig.model_validate(rest), problems
    except ValidationError:
        return None, problems


def _remove(document: dict[str, Any], key: Key) -> None:
    """Removes a key; a list with a wrong entry goes as a whole, as does what lacks a key."""
    trail: list[tuple[dict[Any, Any], str | int]] = []
    holder: Any = document
    for part in key:
        if not isinstance(holder, dict):
            break
        trail.append((holder, part))
        holder = holder.get(part)
    is_missing = len(trail) == len(key) and key[-1] not in trail[-1][0]
    owner, part = trail[-2] if is_missing and len(trail) > 1 else trail[-1]
    owner.pop(part, None)


def _check(
    config: RunConfig, document: Mapping[str, Any], earlier: Mapping[str, AlgorithmSpec | None]
) -> Iterator[Problem]:
    algorithm = document.get("algorithm")
    if not isinstance(algorithm, dict) or "name" not in algorithm:
        yield absence("algorithm.name", "missing.", accepted(("algorithm", "name")))
        return
    try:
        spec_of(config)
    except ConfigError as error:
        yield absence("algorithm", error.wrong, error.right)
        return
    yield from check_needs(config, earlier)
    yield from check_agreement(config)


def _depends_on(problem: Problem, refused: Mapping[Key, Problem]) -> bool:
    """Says whether a finding may come from a value that the schema has refused already."""
    keys = [tuple(key.split(".")) for key in (problem.key, *problem.concerns)]
    wrong = [tuple(str(part) for part in key) for key in refused]
    return any(a[: len(b)] == b or b[: len(a)] == a for a in keys for b in wrong)
