"""Runs placements of the small jobs, all on the same processes, and what the planner expects."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from foreign_load import ForeignLoad
from placement_jobs import JOBS, Case, job_document
from placement_rows import Measured, median_row
from placements_page import AUTO

from flexrlhf.config.cluster import RayCluster
from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.learning.models.loading import load_tokenizer
from flexrlhf.planning.costs.profiled.profile import Profile
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.evaluation import evaluate
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.stage_plans import cluster_of, stage_plans, with_profile
from flexrlhf.runtime.datasets import load_data
from flexrlhf.runtime.loop import TrainingRun
from flexrlhf.runtime.ray_cluster.joined import joined_cluster
from flexrlhf.runtime.ray_cluster.processes import RayProcesses
from flexrlhf.runtime.ray_cluster.ray_launch import launch_on_ray
from flexrlhf.runtime.reward_role import reward_functions
from flexrlhf.runtime.stages import SilentListener

_MOST_WORKERS: Final = 4
_WORKERS: Final = (2, 4)


def profiled(folder: Path) -> Path:
    """Measures this machine and returns the file of its profile."""
    file = folder / "profile.yaml"
    command = [sys.executable, "-m", "flexrlhf.cli", "profile", "--out", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return file


def facts(command: str, profile: Profile, seconds: float) -> dict[str, Any]:
    """Returns where and when something was measured, for its page."""
    root = Path(__file__).parents[2]
    head = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "command": command,
        "commit": commit,
        "machine": f"{profile.device}, {profile.made.get('cores')} cores",
        "at": f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC",
        "profiled_at": profile.made.get("at", ""),
        "minutes": round(seconds / 60, 1),
    }


def write_page(path: Path, document: Mapping[str, Any], page: Callable[[Any], str]) -> None:
    """Writes what was measured so far as JSON, and the page made of that beside it."""
    text = json.dumps(document, indent=1) + "\n"
    path.with_suffix(".json").write_text(text, encoding="utf-8")
    path.write_text(page(json.loads(text)), encoding="utf-8")


class PlacementBench:
    """The jobs on this machine, or on the machines of a Ray cluster.

    Args:
        folder: with the jobs' files.
        profile: of the machine, or of the cluster's.
        iterations: of each run.
        ray: address of the cluster, which has a machine for each worker; None for this machine.
    """

    def __init__(
        self, folder: Path, profile: Path, iterations: int, *, ray: str | None = None
    ) -> None:
        self._folder = folder
        self._profile = profile
        self._iterations = iterations
        self._ray = ray

    def autos(self) -> Iterator[Case]:
        """Yields what `placement: auto` chooses for each job and number of workers."""
        for job in JOBS:
            for workers in _WORKERS:
                config = self._config(job, workers)
                best = stage_plans(config)[0].ranked.best
                plan = replace(best, predicted=None)
                yield Case(job, f"{AUTO}{best.strategy}", workers, plan)

    def predicted(self, case: Case) -> Plan:
        """Returns a case's plan with what it is expected to take."""
        config = self._config(case.job, case.workers, case.max_staleness)
        setting = config.cluster
        joined = joined_cluster(setting) if isinstance(setting, RayCluster) else None
        cluster = joined or cluster_of(setting)
        request = with_profile(config, request_from(config, cluster, runnable=True))
        return evaluate(request, case.plan).plan

    def measured(self, wanted: Iterable[tuple[Case, Plan]]) -> Iterator[Measured]:
        """Runs every case and yields what it took.

        Args:
            wanted: cases with their predictions; each is asked for after the one before has run,
                so that it may depend on what that took.
        """
        processes = RayProcesses(self._ray)
        try:
            if self._ray is None:  # those that a placement does not need then rest
                processes.start([_MOST_WORKERS])
            for number, (case, plan) in enumerate(wanted):
                row = self._run(case, plan, processes, self._folder / f"run-{number}")
                sys.stderr.write(f"{row.line()}\n")
                yield row
        finally:
            processes.close()

    def _run(self, case: Case, plan: Plan, processes: RayProcesses, folder: Path) -> Measured:
        config = self._config(case.job, case.workers, case.max_staleness)
        processes.start([case.workers] if self._ray is None else [1] * case.workers)
        tokenizer = load_tokenizer(str(self._folder / "tokenizer"))
        rewards = reward_functions(config.reward)
        data = load_data(config.data, spec_of(config).data, tokenizer, rewards)
        launched = launch_on_ray(config, plan, data, processes)
        folder.mkdir()
        load = ForeignLoad([member.process_id for member in processes.members])
        run = TrainingRun(case.name, folder, launched, plan)
        try:
            run.train(SilentListener())
            share = load.share()
        finally:
            run.close()
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return median_row(case, plan, [json.loads(line) for line in lines], share)

    def _config(self, job: str, workers: int, max_staleness: int = 0) -> RunConfig:
        cluster: dict[str, Any] = {"profile": str(self._profile), "workers": workers}
        if self._ray is not None:
            cluster["ray"] = self._ray
        document = job_document(
            job,
            self._folder,
            cluster,
            iterations=self._iterations,
            max_staleness=max_staleness,
        )
        return resolve(build_config(document))
