"""Composition root: the only place that turns a RunConfig into objects and wires them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flexrlhf.config.cluster import RayCluster, is_one_device
from flexrlhf.config.files import require_files
from flexrlhf.config.loading import dump_config, load_config, request_of
from flexrlhf.config.resolution import resolve, with_threads
from flexrlhf.config.schema import RunConfig
from flexrlhf.config.yaml_text import write_yaml
from flexrlhf.core.atomic_files import write_atomically
from flexrlhf.core.errors import ConfigError, FlexError, RunFailed
from flexrlhf.core.plugins import require_package
from flexrlhf.planning.placement.plan import Plan, plans_document
from flexrlhf.planning.placement.runnable import require_runnable
from flexrlhf.planning.search.this_machine import this_machine_plans

if TYPE_CHECKING:
    from flexrlhf.planning.cluster.cluster import Cluster
    from flexrlhf.planning.search.stage_plans import StagePlans
    from flexrlhf.runtime.datasets import RunData
    from flexrlhf.runtime.loop import Listener
    from flexrlhf.runtime.prompt_file import PromptContent
    from flexrlhf.runtime.ray_cluster.processes import RayProcesses


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a finished run left behind."""

    run_dir: Path
    metrics: tuple[Mapping[str, Any], ...]
    """Rows of metrics.jsonl; of the last stage, where there are several."""
    plan: Plan
    """The last stage's."""


def load(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Loads a config with every `auto` written out that needs no measurement.

    Raises:
        ConfigError: lists everything that is wrong.
    """
    return resolve(load_config(path, overrides))


def plan(config: RunConfig) -> list[Plan]:
    """Returns the plans of a run, best first; of a run with stages, one per stage in order.

    Raises:
        PlanError: the strategy asked for cannot be had.
    """
    config = resolve(config)
    if _is_one_device(config):
        return this_machine_plans(config)
    found = _stage_plans(config)
    return [stage.ranked.best for stage in found] if config.stages else list(found[0].ranked.plans)


def _is_one_device(config: RunConfig) -> bool:
    """Whether every stage runs in one process on one device of this machine."""
    return all(is_one_device(stage.cluster) for _, stage in config.stage_configs())


def _stage_plans(config: RunConfig) -> list[StagePlans]:
    """Searches for the plans of every stage, on the machines that Ray has if it is asked for."""
    from flexrlhf.planning.search.stage_plans import stage_plans

    return stage_plans(config, _joined(config))


def _joined(config: RunConfig) -> Cluster | None:
    """Returns the machines of the Ray cluster that a config names; None where it names none."""
    setting = next((s.cluster for _, s in config.stage_configs()), config.cluster)
    if not isinstance(setting, RayCluster):
        return None
    from flexrlhf.runtime.ray_cluster.joined import joined_cluster

    return joined_cluster(setting)


def _cluster_of(config: RunConfig) -> Cluster:
    """Returns the machines that a run of workers is trained on."""
    from flexrlhf.planning.search.stage_plans import cluster_of

    setting = next(stage.cluster for _, stage in config.stage_configs())
    return _joined(config) or cluster_of(setting)


def _training_plans(config: RunConfig, cluster: Cluster | None) -> list[Plan]:
    """Returns the plan of every stage that is trained; a run does not wait for advice."""
    if cluster is None:
        return this_machine_plans(config)
    from flexrlhf.planning.search.stage_plans import stage_plans

    found = stage_plans(config, cluster, advised=False)
    return [stage.ranked.best for stage in found]


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
    _require_packages("Training")
    from flexrlhf.runtime import environment, run_folder
    from flexrlhf.runtime.run_log import logged

    cluster = None if _is_one_device(config) else _cluster_of(config)
    with _processes(config, cluster) as processes:  # they start while the run is planned
        plans = [plan] if plan is not None else _training_plans(config, cluster)
        for stage_plan in plans:
            require_runnable(stage_plan, 1 if cluster is None else cluster.num_devices)
        folder = Path(run_dir) if run_dir else run_folder.default_folder(_name(config))
        with run_folder.opened(folder, resume=resume), logged(folder):
            config = run_folder.resumed_config(config, folder) if resume else config
            threads = environment.set_threads(_threads(config, cluster))
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


def _processes(
    config: RunConfig, cluster: Cluster | None
) -> AbstractContextManager[RayProcesses | None]:
    """The processes of a run's workers."""
    if cluster is None:
        return nullcontext()
    from flexrlhf.runtime.ray_cluster.processes import worker_processes

    setting = next(stage.cluster for _, stage in config.stage_configs())
    return worker_processes(setting, cluster, _threads(config, cluster))


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
    _require_packages("A dry run")
    from flexrlhf.report.plan_text import plan_text
    from flexrlhf.runtime import stages

    resolved = resolve(config)
    cluster = None if _is_one_device(resolved) else _cluster_of(resolved)
    plans = _training_plans(resolved, cluster)
    prepared = stages.prepare(config, plans, Path())
    parts = ["# resolved config", dump_config(config)]
    for stage in prepared.stages:
        parts += [f"# batch sizes of {stage.name}", _batch_words(stage.config, stage.data)]
    return "\n".join([*parts, "# plan", plan_text(plan_document(config))])


def plan_document(config: RunConfig, *, page: Path | None = None) -> dict[str, Any]:
    """Returns the document that `plan --json` prints.

    Under `stages` a run of several stages has the plans of each; `plans` are then their winners.

    Args:
        config: the run.
        page: where the same goes as a page for people, if it is wanted.

    Raises:
        PlanError: nothing fits, or the strategy asked for cannot be had.
        ConfigError: the page would show nothing, or its folder does not exist.
        RunFailed: the page cannot be written.
    """
    config = resolve(config)
    if page is not None:
        _require_page(config, page)
    if _is_one_device(config):
        return plans_document(request_of(config), this_machine_plans(config))
    found = _stage_plans(config)
    winners = [stage.ranked.best for stage in found]
    if page is not None:
        _write_plan_page(page, found)
    if not config.stages:
        ranked = found[0].ranked
        return plans_document(request_of(config), ranked.plans, ranked.search)
    stages = {
        stage.name: {
            "plans": [plan.to_json() for plan in stage.ranked.plans],
            "search": dict(stage.ranked.search),
        }
        | ({} if stage.switch_s is None else {"switch_s": stage.switch_s})
        for stage in found
    }
    return plans_document(request_of(config), winners) | {"stages": stages}


def predict(cases: Path | str, out: Path | str) -> str:
    """Answers the rows of a case file and returns one line about it.

    Raises:
        ConfigError: the case file is wrong, or the answers cannot be written.
    """
    from flexrlhf.planning.cases.prediction import predict_file

    answers = predict_file(Path(cases), Path(out))
    refused = sum(answer.value is None for answer in answers)
    return f"{len(answers) - refused} rows answered, {refused} refused: {out}"


def profile(
    out: Path | str, say: Callable[[str], None] = lambda _: None, *, ray: str | None = None
) -> str:
    """Measures this machine into a file that `cluster: {profile: FILE}` names.

    Args:
        out: the file; one that is there is replaced.
        say: hears what is measured next.
        ray: address of a Ray cluster whose machines are measured too.

    Returns:
        One line about it.

    Raises:
        ConfigError: the file cannot be written, or there is no such cluster.
        EngineMissing: a package that training needs is not installed.
        FlexError: a machine of the cluster failed.
    """
    _require_packages("A profile")
    file = Path(out)
    if file.is_dir() or not file.parent.is_dir():
        raise ConfigError(
            f"--out {file}: "
            + ("this is a folder." if file.is_dir() else f"there is no folder {file.parent}."),
            "It names a file in a folder that exists.",
            "Choose another name, or make the folder first.",
        )
    from flexrlhf.runtime import environment

    threads = environment.set_threads("auto")
    from flexrlhf.runtime.profiling.measure import measure  # torch reads the threads only once

    facts = environment.describe_environment(shlex.join(sys.argv))
    measured = measure(facts, threads, say, ray=ray)
    try:
        write_atomically(file, write_yaml(measured.to_document()))
    except OSError as error:
        raise ConfigError(
            f"--out {file} cannot be written: {error.strerror or error}.",
            "It names a file in a folder that may be written to.",
            "Choose another name, or mend the permissions.",
        ) from error
    return f"{measured.device}, {threads} threads, measured in {measured.made['seconds']} s: {file}"


def report(run_dir: Path | str) -> Path:
    """Writes `report.html` of a run folder and returns its path.

    Raises:
        ConfigError: the folder holds no run.
        RunFailed: the page cannot be written.
    """
    from flexrlhf.report.page import write_report

    try:
        return write_report(Path(run_dir))
    except OSError as error:
        raise RunFailed(
            f"The report of {run_dir} cannot be written: {error.strerror or error}.",
            "The run itself is untouched.",
            f"Free some space or mend the permissions, then: flexrlhf report {run_dir}",
        ) from error


def summary(run_dir: Path | str) -> str:
    """Returns the short table of a run folder.

    Raises:
        ConfigError: the folder holds no run.
    """
    from flexrlhf.report.run_folder import read_run
    from flexrlhf.report.summary import summary_text

    return summary_text(read_run(run_dir))


def read_prompts(file: Path | str) -> list[PromptContent]:
    """Returns the prompts in a file: column `prompt` of each row of a .jsonl, else a line each.

    Raises:
        ConfigError: the file is missing, not readable as text, or without prompts.
    """
    _require_packages("Generating")
    from flexrlhf.runtime import prompt_file

    return prompt_file.read_prompts(Path(file))


def generate(
    source: Path | str,
    *,
    prompts: Sequence[PromptContent],
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[tuple[str, str]]:
    """Returns each prompt with the answer of a run's or folder's policy.

    Raises:
        ConfigError: there is no such model, it cannot compute, a prompt is not one or is too long
            for it, or the temperature is out of range.
    """
    _require_packages("Generating")
    from flexrlhf.runtime.answering import answers

    return answers(
        Path(source),
        prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
    )


def doctor() -> tuple[str, bool]:
    """Returns what this machine can run and what is wrong with it, and whether nothing is."""
    from flexrlhf.runtime.health import check_machine

    findings = check_machine()
    lines = [
        f"{finding.status:8}{finding.name}: {finding.detail}"
        + (f"\n        {finding.advice}" if finding.advice else "")
        for finding in findings
    ]
    return "\n".join(lines), all(finding.status != "error" for finding in findings)


def _threads(config: RunConfig, cluster: Cluster | None) -> int | Literal["auto"]:
    """Workers compute with one thread each, unless the user asks for more."""
    if cluster is None or cluster.num_devices == 1 or config.training.threads != "auto":
        return config.training.threads
    return 1


def _require_packages(needed_by: str) -> None:
    """Checks that what comes with `flexrlhf[train]` is installed, since planning needs none of it.

    Raises:
        EngineMissing: something is not.
    """
    for package in ("torch", "transformers", "safetensors"):
        require_package(package, needed_by=needed_by)


def _require_page(config: RunConfig, page: Path) -> None:
    """Checks before the search that a plan page has something to show and somewhere to be.

    Raises:
        ConfigError: it has not.
    """
    if _is_one_device(config):
        raise ConfigError(
            "--html has nothing to show: with cluster: auto every role sits on this machine's one "
            "device.",
            "A page compares placements on a cluster that is described.",
            "Describe one, for example: --set cluster=examples/clusters/one-8xA100-80G.yaml",
        )
    if page.is_dir() or not page.parent.is_dir():
        raise ConfigError(
            f"--html {page}: "
            + ("this is a folder." if page.is_dir() else f"there is no folder {page.parent}."),
            "It names a file in a folder that exists.",
            "Choose another name, or make the folder first.",
        )


def _write_plan_page(page: Path, found: Sequence[StagePlans]) -> None:
    from flexrlhf.report.plan_page import write_plan_page

    try:
        write_plan_page(page, found)
    except OSError as error:
        raise RunFailed(
            f"The plan page {page} cannot be written: {error.strerror or error}.",
            "It needs a file in a folder that may be written to, with 5 MB left on the disk.",
            "Free some space or mend the permissions, or choose another --html.",
        ) from error


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
