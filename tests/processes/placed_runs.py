"""Runs a config on one device and on the workers of any plan, and keeps what it has run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny_runs import tiny_config, tiny_data, write_files

from flexrlhf.config.resolution import spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.stage_plans import stage_plans
from flexrlhf.runtime.launch import launch
from flexrlhf.runtime.loop import Launched, Listener, TrainingRun
from flexrlhf.runtime.ray_cluster.processes import RayProcesses
from flexrlhf.runtime.ray_cluster.ray_launch import launch_on_ray
from flexrlhf.runtime.stages import SilentListener


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """What a run left, and where it ran."""

    folder: Path
    plan: Plan
    seconds: float


@dataclass(slots=True)
class PlacedRuns:
    """A folder for runs, and processes that all of them share.

    Args:
        folder: an empty one.
        processes: started when the first run needs them.
    """

    folder: Path
    processes: RayProcesses
    _alone: dict[str, PlacedRun] = field(default_factory=dict[str, PlacedRun])
    _runs: int = 0

    def __post_init__(self) -> None:
        write_files(self.folder)

    def on_one_device(
        self, variant: str, *, iterations: int = 3, dtype: str = "float64"
    ) -> PlacedRun:
        """Returns the run of a variant in this process, the measure of all others."""
        key = f"{variant}-{iterations}-{dtype}"
        if key not in self._alone:
            config = tiny_config(self.folder, variant, iterations=iterations, dtype=dtype)
            plan = one_device_plan(spec_of(config))
            launched = launch(config, tiny_data(config, self.folder))
            self._alone[key] = self._trained(launched, plan, self.folder / key)
        return self._alone[key]

    def plan(self, variant: str, workers: int, **changes: Any) -> tuple[RunConfig, Plan]:
        """Returns a config for so many workers, and the best plan for it.

        Args:
            variant: of the algorithm.
            workers: of the run.
            changes: what `tiny_config` takes; `changes.placement` holds the planner to something.
        """
        sections: Mapping[str, Any] = changes.pop("changes", {})
        cluster = {"workers": workers, **sections.get("cluster", {})}
        config = tiny_config(
            self.folder, variant, changes={**sections, "cluster": cluster}, **changes
        )
        return config, stage_plans(config, advised=False)[0].ranked.best

    def on_workers(
        self,
        config: RunConfig,
        plan: Plan,
        folder: Path | None = None,
        listener: Listener | None = None,
    ) -> PlacedRun:
        """Runs a config under a plan, in a folder of its own or on from what one holds."""
        self._runs += 1
        folder = folder or self.folder / f"placed-{self._runs}"
        self.processes.start([len(plan.devices)])
        launched = launch_on_ray(config, plan, tiny_data(config, self.folder), self.processes)
        return self._trained(launched, plan, folder, listener)

    @staticmethod
    def _trained(
        launched: Launched, plan: Plan, folder: Path, listener: Listener | None = None
    ) -> PlacedRun:
        begun_s = time.monotonic()
        folder.mkdir(exist_ok=True)
        training = TrainingRun(folder.name, folder, launched, plan)
        try:
            training.train(listener or SilentListener())
        finally:
            training.close()
        return PlacedRun(folder, plan, time.monotonic() - begun_s)
