"""The stages of a run: checked before anything starts, then run one after the other."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from flexrlhf.config.model import RoleModel
from flexrlhf.config.paths import STAGE
from flexrlhf.config.resolution import spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import FlexError
from flexrlhf.core.names import Role
from flexrlhf.learning.models.loading import load_tokenizer
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.runtime.datasets import RunData, load_data
from flexrlhf.runtime.launch import launch
from flexrlhf.runtime.loop import Listener, TrainingRun
from flexrlhf.runtime.records import read_rows
from flexrlhf.runtime.recover import CheckpointStore
from flexrlhf.runtime.reward_role import reward_functions
from flexrlhf.runtime.role_models import model_source
from flexrlhf.runtime.run_folder import resumed_config, write_config

logger = logging.getLogger(__name__)


class SilentListener:
    """Hears a run and says nothing."""

    def start_stage(self, name: str, iterations: int, finished: int) -> None:
        """A stage begins."""

    def finish_iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """An iteration is finished."""


@dataclass(frozen=True, slots=True)
class PreparedStage:
    """A stage whose rows, rewards and tokenizer are known to load."""

    name: str
    config: RunConfig
    spec: AlgorithmSpec
    plan: Plan
    data: RunData
    folder: Path


def stage_folder(run_dir: Path, name: str, config: RunConfig) -> Path:
    """Returns the folder of a stage: the run's own where it has no stages."""
    return run_dir / "stages" / name if config.stages else run_dir


def prepare(config: RunConfig, plans: Sequence[Plan], run_dir: Path) -> list[PreparedStage]:
    """Loads what every stage reads, so that bad input is found before the first one starts.

    Raises:
        ConfigError: rows, rewards or a tokenizer are wrong.
    """
    configs = dict(config.stage_configs())
    return [
        _prepared(name, configs, plan, stage_folder(run_dir, name, config))
        for name, plan in zip(configs, plans, strict=True)
    ]


def _prepared(
    name: str, configs: Mapping[str, RunConfig], plan: Plan, folder: Path
) -> PreparedStage:
    config = configs[name]
    if (folder / "config.yaml").is_file():
        config = resumed_config(config, folder)
    spec = spec_of(config)
    tokenizer = load_tokenizer(_origin(spec.trained[0], config, configs))
    reward_functions(config.reward)
    return PreparedStage(
        name, config, spec, plan, load_data(config.data, spec.data, tokenizer), folder
    )


def _origin(role: Role, config: RunConfig, configs: Mapping[str, RunConfig]) -> ModelSource:
    """Returns the model that a role's weights come from, however many stages ago."""
    source = model_source(role, config)
    assert source is not None, "trained roles have a model"
    if source.path is None or not source.path.startswith(STAGE):
        return source
    stage, earlier_role = source.path.removeprefix(STAGE).split("/")
    return _origin(cast("Role", earlier_role), configs[stage], configs)


def run(stage: PreparedStage, run_dir: Path, listener: Listener) -> None:
    """Runs one stage to its end, or goes on where it was interrupted.

    Raises:
        FlexError: it failed; what was finished is in its folder.
    """
    stage.folder.mkdir(parents=True, exist_ok=True)
    if _is_finished(stage):
        logger.info("%s is finished", stage.name)
        return
    launched = launch(_located(stage.config, run_dir), stage.data)
    measured = {"training": launched.config.training}
    write_config(stage.config.model_copy(update=measured), stage.folder)
    training = TrainingRun(stage.name, stage.folder, launched, stage.plan)
    try:
        training.train(listener)
    except FlexError as error:
        logger.error("%s failed: %s", stage.name, error)
        raise
    finally:
        training.close()


def metrics(stage: PreparedStage) -> tuple[Mapping[str, Any], ...]:
    """Returns the rows of a stage's metrics.jsonl."""
    return tuple(read_rows(stage.folder / "metrics.jsonl"))


def _is_finished(stage: PreparedStage) -> bool:
    newest = CheckpointStore(stage.folder / "checkpoints", keep=1).newest()
    iterations = stage.config.training.iterations
    is_trained = newest is not None and newest.name == f"iteration-{iterations}"
    return is_trained and all((stage.folder / "model" / r).is_dir() for r in stage.spec.trained)


def _located(config: RunConfig, run_dir: Path) -> RunConfig:
    """Returns the config with the folders of earlier stages in place of `stage:NAME/ROLE`."""
    models = {
        role: _located_model(model, run_dir)
        for role in type(config.model).model_fields
        if (model := getattr(config.model, role)) is not None
    }
    return config.model_copy(update={"model": config.model.model_copy(update=models)})


def _located_model(model: RoleModel, run_dir: Path) -> RoleModel:
    if model.path is None or not model.path.startswith(STAGE):
        return model
    stage, role = model.path.removeprefix(STAGE).split("/")
    return model.model_copy(update={"path": str(run_dir / "stages" / stage / "model" / role)})
