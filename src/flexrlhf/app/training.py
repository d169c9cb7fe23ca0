"""Training, with all that it takes: plans, workers, a folder, a report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexrlhf.app.machines import (
    cluster_of_run,
    is_one_device_run,
    require_packages,
    threads_of,
)
from flexrlhf.app.planning import plan_document, settled_speculation, training_plans
from flexrlhf.app.results import report
from flexrlhf.config.files import require_files
from flexrlhf.config.loading import dump_config
from flexrlhf.config.resolution import resolve, with_threads
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.errors import ConfigError, FlexError, RunFailed
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.placement.runnable import require_runnable

if TYPE_CHECKING:
    from flexrlhf.planning.cluster.cluster import Cluster
    from flexrlhf.runtime.datasets import RunData
    from flexrlhf.runtime.loop import Listener
    from flexrlhf.runtime.ray_cluster.processes import RayProcesses


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a finished run left behind."""

    run_dir: Path
    metrics: tuple[Mapping[str, Any], ...]
    """Rows of metrics.jsonl; of the last stage, where there are several."""
    plan: Plan
    """The last stage's."""


def train(
    config: RunConfig,
    plan: Plan | None = None,
    *,
    run_dir: Path | str | None = None,
    resume: bool = False,
    listener: Listener | None = None,
) -> RunResult:
    """Trains, stage by stage, and leaves a run folder with models and report.

    Args:
        config: what to do.
        plan: where to run it; the best one if not given. A run of stages finds its own.
        run_dir: the run folder; `runs/ALGORITHM-TIME` if not given.
        resume: go on in a folder of an interrupted run.
        listener: hears how the run goes on.

    Raises:
        ConfigError: the input is wrong; nothing was started.
        PlanError: the plan cannot be run here; nothing was started.
        EngineMissing: a package that training needs is not installed.
        FlexError: the run failed; what was finished is in the run folder.
    """
    config = resolve(config)
    if plan is not None and config.stages:
        raise ConfigError(
            "One plan was given for a run of several stages.",
            "Each stage has a plan of its own.",
            "Leave plan out, or train the stages one by one.",
        )
    require_files(config)
    require_packages("Training")
    from flexrlhf.runtime import environment, run_folder
    from flexrlhf.runtime.run_log import logged

    cluster = None if is_one_device_run(config) else cluster_of_run(config)
    config = settled_speculation(config, cluster)
    with _processes(config, cluster) as processes:  # they start while the run is planned
        plans = [plan] if plan is not None else training_plans(config, cluster)
        for stage_plan in plans:
            require_runnable(stage_plan, 1 if cluster is None else cluster.num_devices)
        folder = Path(run_dir) if run_dir else run_folder.default_folder(_name(config))
        with run_folder.opened(folder, resume=resume), logged(folder):
            config = run_folder.resumed_config(config, folder) if resume else config
            threads = environment.set_threads(threads_of(config, cluster))
            from flexrlhf.learning.training import memory  # torch reads the threads only once
            from flexrlhf.runtime import stages

            memory.share_one_heap()
            whole = folder.absolute()  # workers on other machines start in folders of their own
            prepared = stages.prepare(with_threads(config, threads), plans, whole)
            facts = environment.describe_environment(shlex.join(sys.argv))
            heard = listener or stages.SilentListener()
            try:
                stages.run(prepared, facts, heard, cluster, processes)
            except BaseException:
                with suppress(FlexError):  # why the run stopped says more
                    _write_report(folder)
                raise
            _write_report(folder)
            return RunResult(folder, stages.metrics(prepared.stages[-1]), plans[-1])


def train_with_progress(
    config: RunConfig, *, run_dir: Path | None = None, resume: bool = False
) -> RunResult:
    """Trains as `train` does, with progress on standard error.

    Raises:
        RunFailed: also where the user interrupts the run.
    """
    from rich.console import Console

    from flexrlhf.report.progress import RunProgress
    from flexrlhf.runtime.run_folder import default_folder

    folder = run_dir or default_folder(_name(config))
    progress = RunProgress(Console(stderr=True))
    try:
        return train(config, run_dir=folder, resume=resume, listener=progress)
    except KeyboardInterrupt as interrupt:
        raise RunFailed(
            "The run was interrupted.",
            f"What it had finished is in {folder}.",
            f"To go on, give the same command with --run-dir {folder} --resume.",
        ) from interrupt
    finally:
        progress.close()


def dry_run(config: RunConfig) -> str:
    """Checks a run's input and returns resolved config, batch sizes and plan as text.

    Raises:
        ConfigError: the input is wrong.
    """
    require_files(config)
    require_packages("A dry run")
    from flexrlhf.report.plan_text import plan_text
    from flexrlhf.runtime import stages

    resolved = resolve(config)
    cluster = None if is_one_device_run(resolved) else cluster_of_run(resolved)
    plans = training_plans(resolved, cluster)
    prepared = stages.prepare(config, plans, Path())
    parts = ["# resolved config", dump_config(config)]
    for stage in prepared.stages:
        parts += [f"# batch sizes of {stage.name}", _batch_words(stage.config, stage.data)]
    return "\n".join([*parts, "# plan", plan_text(plan_document(config))])


def _processes(
    config: RunConfig, cluster: Cluster | None
) -> AbstractContextManager[RayProcesses | None]:
    """The processes of a run's workers."""
    if cluster is None:
        return nullcontext()
    from flexrlhf.runtime.ray_cluster.processes import worker_processes

    setting = next(stage.cluster for _, stage in config.stage_configs())
    return worker_processes(setting, cluster, threads_of(config, cluster))


def _name(config: RunConfig) -> str:
    return "-".join(name for name, _ in config.stage_configs())


def _write_report(folder: Path) -> None:
    """Writes the report, unless the run ended before its first iteration did."""
    if any(path.stat().st_size for path in folder.glob("**/metrics.jsonl")):
        report(folder)


def _batch_words(config: RunConfig, data: RunData) -> str:
    """Returns the words for batch sizes with this run's numbers."""
    from flexrlhf.report.batch_words import batch_words

    rows = [("rows in the data set", len(data.training))]
    rows += [(word, value) for word, value, _ in batch_words(config.model_dump(mode="json"))]
    return "\n".join(f"{word:32} {value}" for word, value in rows)
