"""The stages of a run: checked before anything starts, then run one after the other."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from flexrlhf.config.model import RoleModel
from flexrlhf.config.resolution import settled, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.config.training import Training
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import ConfigError, EngineMissing, FlexError, RunFailed
from flexrlhf.core.names import Role
from flexrlhf.core.sources import STAGE
from flexrlhf.learning.models.loading import load_tokenizer
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.training.memory import held_bytes
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.profiled.profile import Profile
from flexrlhf.planning.costs.profiled.setting import profile_of
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.runtime import thread_pool
from flexrlhf.runtime.datasets import RunData, load_data
from flexrlhf.runtime.description import write_description
from flexrlhf.runtime.environment import set_threads
from flexrlhf.runtime.launch import launch
from flexrlhf.runtime.loop import Launched, Listener, TrainingRun
from flexrlhf.runtime.predicting import RunPrediction, prediction_of
from flexrlhf.runtime.records import read_rows
from flexrlhf.runtime.recover import CheckpointStore
from flexrlhf.runtime.reward_role import reward_functions
from flexrlhf.runtime.role_models import model_source
from flexrlhf.runtime.run_folder import remove_leftovers
from flexrlhf.runtime.run_log import logged

if TYPE_CHECKING:
    from flexrlhf.runtime.ray_cluster.processes import RayProcesses

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
    profile: Profile | None = None
    """Constants of this machine, where any are known."""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run of which every stage is prepared."""

    config: RunConfig
    folder: Path
    stages: tuple[PreparedStage, ...]


def stage_folder(run_dir: Path, name: str, config: RunConfig) -> Path:
    """Returns the folder of a stage: the run's own where it has no stages."""
    return run_dir / "stages" / name if config.stages else run_dir


def prepare(config: RunConfig, plans: Sequence[Plan], run_dir: Path) -> PreparedRun:
    """Loads what every stage reads, so that bad input is found before the first one starts.

    Raises:
        ConfigError: rows, rewards or a tokenizer are wrong.
    """
    configs = dict(config.stage_configs())
    stages = (
        _prepared(name, configs, plan, stage_folder(run_dir, name, config))
        for name, plan in zip(configs, plans, strict=True)
    )
    return PreparedRun(config, run_dir, tuple(stages))


def _prepared(
    name: str, configs: Mapping[str, RunConfig], plan: Plan, folder: Path
) -> PreparedStage:
    config = configs[name]
    spec = spec_of(config)
    tokenizer = load_tokenizer(_origin(spec.trained[0], config, configs))
    rewards = reward_functions(config.reward)
    data = load_data(config.data, spec.data, tokenizer, rewards if spec.generates else ())
    profile = profile_of(config.cluster)
    return PreparedStage(name, config, spec, plan, data, folder, profile)


def _origin(role: Role, config: RunConfig, configs: Mapping[str, RunConfig]) -> ModelSource:
    """Returns the model that a role's tokenizer comes from, however many stages ago."""
    source = model_source(role, config)
    assert source is not None, "trained roles have a model"
    if source.tokenizer or source.path is None or not source.path.startswith(STAGE):
        return source
    stage, earlier_role = source.path.removeprefix(STAGE).split("/")
    return _origin(cast("Role", earlier_role), configs[stage], configs)


def run(
    prepared: PreparedRun,
    environment: Mapping[str, Any],
    listener: Listener,
    cluster: Cluster | None = None,
    processes: RayProcesses | None = None,
) -> None:
    """Runs the stages to the end of the last, or goes on where they were interrupted.

    Args:
        prepared: the stages.
        environment: what `environment.json` says.
        listener: hears how the run goes on.
        cluster: whose devices the plans mean, where workers run them; None for one device here.
        processes: of the workers.

    Raises:
        ConfigError: the first stage cannot begin, or an iteration count cannot change any more.
        FlexError: a stage failed; what was finished is in its folder.
    """
    _check_iterations(prepared.stages)
    config = prepared.config
    plans = {stage.name: _written_plan(stage) or stage.plan for stage in prepared.stages}
    write_description(config, list(plans.values()), environment, prepared.folder)
    launcher = _Launcher(prepared, cluster, processes)
    for stage in prepared.stages:
        remove_leftovers(stage.folder)
        if _is_finished(stage):
            logger.info("%s is finished", stage.name)
            continue
        config = _run_stage(
            stage, launcher, config, plans=plans, environment=environment, listener=listener
        )


def _run_stage(
    stage: PreparedStage,
    launcher: _Launcher,
    config: RunConfig,
    *,
    plans: dict[str, Plan],
    environment: Mapping[str, Any],
    listener: Listener,
) -> RunConfig:
    """Runs one stage, whose models are gone when it returns; `plans` gets what it is to take.

    Returns:
        The run's config with what the launch of this stage measured.
    """
    held = held_bytes(torch.device("cpu"))
    launched = launcher.launch(stage)
    predicted = _predicted(stage, launched, held)
    if predicted is not None:
        stage = replace(stage, plan=predicted.plan)
        plans[stage.name] = predicted.plan
    config = _with_training(config, stage.name, launched.config.training)
    write_description(config, list(plans.values()), environment, launcher.prepared.folder)
    stage.folder.mkdir(parents=True, exist_ok=True)
    with logged(stage.folder) if config.stages else nullcontext():
        if config.stages:
            own_config = dict(config.stage_configs())[stage.name]
            write_description(own_config, [stage.plan], environment, stage.folder)
        _train(stage, launched, predicted, listener)
    return config


def _predicted(stage: PreparedStage, launched: Launched, held: int) -> RunPrediction | None:
    """Returns what the stage is expected to take, now that its rows and limits are known.

    Args:
        stage: the stage.
        launched: what its launch made and measured.
        held: bytes that the process held before: rows, and what earlier stages left.
    """
    if stage.profile is None:
        return None
    return prediction_of(
        launched.config,
        stage.plan,
        stage.profile.holding(held),
        stage.data.training,
        launched.shape,
    )


def _written_plan(stage: PreparedStage) -> Plan | None:
    """Returns what a finished stage was expected to take when it began; None for any other."""
    file = stage.folder / "plan.json"
    if not _is_finished(stage) or not file.is_file():
        return None
    return Plan.from_json(json.loads(file.read_text(encoding="utf-8"))["plans"][0])


def _check_iterations(stages: Sequence[PreparedStage]) -> None:
    """Refuses iterations of a resumed run that what it has done does not allow."""
    for stage in stages:
        finished, asked = _checkpoints(stage).finished, stage.config.training.iterations
        if finished > asked:
            raise ConfigError(
                f"training.iterations of {stage.name} = {asked}, but {finished} are finished.",
                "A resumed run can go on, not back.",
                f"Set it to at least {finished}.",
            )
    begun = [stage for stage in stages if (stage.folder / "config.yaml").is_file()]
    for stage in begun[:-1]:
        if not _is_finished(stage):
            raise ConfigError(
                f"training.iterations of {stage.name} = {stage.config.training.iterations}, but "
                f"{begun[-1].name} has begun from iteration {_checkpoints(stage).finished}.",
                "The iterations of a stage may change until the next one begins from its result.",
                "Put the number back, or start a new run.",
            )


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Launches the stages of a run, in this process or in workers."""

    prepared: PreparedRun
    cluster: Cluster | None
    processes: RayProcesses | None

    def launch(self, stage: PreparedStage) -> Launched:
        """Launches a stage; what is wrong with it after an earlier one ran is a failed run."""
        set_threads(settled(stage.config.training.threads))
        config = _located(stage.config, self.prepared.folder)
        try:
            if self.processes is not None and self.cluster is not None:
                return self._in_workers(stage, config, self.processes, self.cluster)
            launched = launch(config, stage.data)
        except (ConfigError, EngineMissing) as error:
            if stage is self.prepared.stages[0]:
                raise
            raise RunFailed(f"Stage {stage.name}: {error.wrong}", error.right, error.do) from error
        thread_pool.let_go()  # from here on the worker's thread computes
        return launched

    @staticmethod
    def _in_workers(
        stage: PreparedStage, config: RunConfig, processes: RayProcesses, cluster: Cluster
    ) -> Launched:
        from flexrlhf.runtime.ray_cluster.processes import kind_of
        from flexrlhf.runtime.ray_cluster.ray_launch import launch_on_ray

        used = cluster.subset(stage.plan.devices)
        processes.start(
            [len(node.devices) for node in used.nodes],
            kind=kind_of(used),
            threads=settled(config.training.threads),
            machines=[node.address for node in used.nodes],
        )
        return launch_on_ray(config, stage.plan, stage.data, processes)


def _with_training(config: RunConfig, stage_name: str, training: Training) -> RunConfig:
    """Returns the config with what the launch of a stage measured."""
    update = {"training": training}
    if not config.stages:
        return config.model_copy(update=update)
    stages = (
        stage.model_copy(update=update) if stage.name == stage_name else stage
        for stage in config.stages
    )
    return config.model_copy(update={"stages": tuple(stages)})


def _train(
    stage: PreparedStage,
    launched: Launched,
    predicted: RunPrediction | None,
    listener: Listener,
) -> None:
    timeline = predicted.timeline if predicted is not None else None
    training = TrainingRun(stage.name, stage.folder, launched, stage.plan, timeline)
    logger.info("%s begins", stage.name)
    try:
        training.train(listener)
    except BaseException as error:
        logger.error("%s failed: %s", stage.name, error)
        with suppress(FlexError):  # why the stage stopped says more
            training.close()
        raise
    training.close()
    logger.info("%s is finished", stage.name)


def metrics(stage: PreparedStage) -> tuple[Mapping[str, Any], ...]:
    """Returns the rows of a stage's metrics.jsonl."""
    return tuple(read_rows(stage.folder / "metrics.jsonl"))


def _is_finished(stage: PreparedStage) -> bool:
    is_trained = _checkpoints(stage).finished == stage.config.training.iterations
    return is_trained and all((stage.folder / "model" / r).is_dir() for r in stage.spec.trained)


def _checkpoints(stage: PreparedStage) -> CheckpointStore:
    return CheckpointStore(stage.folder / "checkpoints", keep=stage.config.run.keep_checkpoints)


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
