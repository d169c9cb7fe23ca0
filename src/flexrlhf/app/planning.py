"""Plans of a run, for whoever asks and for those who train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexrlhf.app.machines import is_one_device_run, joined_machines
from flexrlhf.config.loading import load_config, request_of
from flexrlhf.config.resolution import resolve
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.errors import ConfigError, RunFailed
from flexrlhf.planning.placement.plan import Plan, plans_document
from flexrlhf.planning.search.this_machine import this_machine_plans

if TYPE_CHECKING:
    from flexrlhf.planning.cluster.cluster import Cluster
    from flexrlhf.planning.search.speculation import SpeculationOutlook
    from flexrlhf.planning.search.stage_plans import StagePlans


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
    config, _ = _with_speculation(resolve(config))
    if is_one_device_run(config):
        return this_machine_plans(config)
    found = searched_plans(config)
    return [stage.ranked.best for stage in found] if config.stages else list(found[0].ranked.plans)


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
    config, outlooks = _with_speculation(resolve(config))
    if page is not None:
        _require_page(config, page)
    expected = {name: outlook.to_json() for name, outlook in outlooks.items()}
    speculation = {"speculation": expected} if expected else {}
    return _plan_document(config, page) | speculation


def _plan_document(config: RunConfig, page: Path | None) -> dict[str, Any]:
    if is_one_device_run(config):
        return _one_device_document(config)
    found = searched_plans(config)
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


def _one_device_document(config: RunConfig) -> dict[str, Any]:
    plans = this_machine_plans(config)
    document = plans_document(request_of(config), plans)
    if not config.stages:
        return document
    names = (name for name, _ in config.stage_configs())
    stages = {name: {"plans": [p.to_json()]} for name, p in zip(names, plans, strict=True)}
    return document | {"stages": stages}


def _with_speculation(
    config: RunConfig, joined: Cluster | None = None
) -> tuple[RunConfig, Mapping[str, SpeculationOutlook]]:
    """Settles `rollout.speculation: auto`; looks at nothing where no stage speculates."""
    if all(stage.rollout.speculation == "none" for _, stage in config.stage_configs()):
        return config, {}
    from flexrlhf.planning.search.speculation import with_speculation

    return with_speculation(config, joined or joined_machines(config))


def settled_speculation(config: RunConfig, cluster: Cluster | None) -> RunConfig:
    """Returns a config that is trained with `rollout.speculation: auto` replaced."""
    return _with_speculation(config, cluster)[0]


def training_plans(config: RunConfig, cluster: Cluster | None) -> list[Plan]:
    """Returns the plan of every stage that is trained; a run does not wait for advice."""
    if cluster is None:
        return this_machine_plans(config, begins=True)
    from flexrlhf.planning.search.stage_plans import stage_plans

    found = stage_plans(config, cluster, advised=False)
    return [stage.ranked.best for stage in found]


def searched_plans(config: RunConfig) -> list[StagePlans]:
    """Searches for the plans of every stage, on the machines that Ray has if it is asked for."""
    from flexrlhf.planning.search.stage_plans import stage_plans

    return stage_plans(config, joined_machines(config))


def _require_page(config: RunConfig, page: Path) -> None:
    """Checks before the search that a plan page has something to show and somewhere to be.

    Raises:
        ConfigError: it has not.
    """
    if is_one_device_run(config):
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
