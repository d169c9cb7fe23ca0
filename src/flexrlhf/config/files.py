"""Checks that what a training run reads is there, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from flexrlhf.config.cluster import ProfiledMachine, RayCluster, can_train
from flexrlhf.config.data import RowSource
from flexrlhf.config.model import RoleModel
from flexrlhf.config.paths import why_absent
from flexrlhf.config.problems import Problem, absence, config_error, mistake
from flexrlhf.config.schema import RunConfig
from flexrlhf.config.trainable import check_trainable
from flexrlhf.core.sources import HUB, REASONING_GYM, STAGE

_LOOKED_IN = "Paths are looked for in the config's folder, then in the current one."
_MEASURE = "flexrlhf profile --out FILE measures this machine."
_DOWNLOAD = "A model of the hub is written hub:ORG/NAME."


def require_files(config: RunConfig, source: str = "config") -> None:
    """Checks that every model, data and reward file exists and can be trained from.

    Raises:
        ConfigError: lists all that are missing, and what can only be planned: roles with nothing
            but a shape, other clusters than this machine, and what is not built yet.
    """
    problems: list[Problem] = []
    for name, stage in config.stage_configs():
        prefix = f"stages.{name}." if config.stages else ""
        problems.extend(check_trainable(stage, prefix))
        problems.extend(_missing(stage, prefix))
    if problems:
        raise config_error(source, problems)


def _missing(config: RunConfig, prefix: str) -> Iterator[Problem]:
    if not can_train(config.cluster):
        yield absence(
            f"{prefix}cluster",
            "described, which is enough to plan.",
            "Training runs on this machine (auto, workers) or on a Ray cluster (ray).",
        )
    if isinstance(config.cluster, ProfiledMachine | RayCluster) and config.cluster.profile:
        yield from _missing_path(f"{prefix}cluster.profile", config.cluster.profile, _MEASURE)
    models = config.model
    for role in ("actor", "critic", "reference", "reward"):
        model: RoleModel | None = getattr(models, role)
        if model is not None:
            yield from _missing_model(f"{prefix}model.{role}", model)
    for kind in ("prompts", "preferences", "supervised", "evaluation"):
        data: RowSource | None = getattr(config.data, kind)
        if data is not None and not data.path.startswith(REASONING_GYM):
            yield from _missing_path(f"{prefix}data.{kind}.path", data.path)
    draft = config.rollout.draft_model
    if draft is not None and draft != "reference" and not draft.startswith(HUB):
        yield from _missing_path(f"{prefix}rollout.draft_model", draft, _DOWNLOAD)
    for position, function in enumerate(config.reward.functions):
        if function.path is not None:
            file = function.path.rpartition(":")[0]
            yield from _missing_path(f"{prefix}reward.functions.{position}.path", file)


def _missing_model(key: str, model: RoleModel) -> Iterator[Problem]:
    if model.shape is not None:
        yield absence(key, "only a shape, which is enough to plan.", "Training needs path or init.")
    if model.path is not None and not model.path.startswith((STAGE, HUB)):
        yield from _missing_path(f"{key}.path", model.path, _DOWNLOAD)
    if model.tokenizer is not None and not model.tokenizer.startswith(HUB):
        yield from _missing_path(f"{key}.tokenizer", model.tokenizer)


def _missing_path(key: str, path: str, advice: str = "") -> Iterator[Problem]:
    if reason := why_absent(path):
        yield mistake(key, path, f"{reason}.", f"{_LOOKED_IN} {advice}".rstrip())
