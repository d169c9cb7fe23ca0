"""The plan page: what was asked, the winning plan and every other one, offline and simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flexrlhf.core.atomic_files import write_atomically
from flexrlhf.planning.search.stage_plans import StagePlans
from flexrlhf.report.charts import Figure
from flexrlhf.report.document import document, tabs
from flexrlhf.report.markup import Html, element, join
from flexrlhf.report.plan_view import plan_view

_STYLES = ("page.css", "plan.css")


def write_plan_page(path: Path, stages: Sequence[StagePlans]) -> None:
    """Writes the page.

    Args:
        path: of the file.
        stages: of the run; a plain run is one.

    Raises:
        PlanError: nothing fits.
        OSError: the page cannot be written.
    """
    write_atomically(path, plan_page(stages))


def plan_page(stages: Sequence[StagePlans]) -> str:
    """Returns the whole page as HTML.

    Raises:
        PlanError: nothing fits.
    """
    figures: dict[str, Figure] = {}
    if len(stages) == 1:
        body = plan_view(stages[0], figures)
    else:
        panels = [
            plan_view(stage, figures, prefix=f"s{number}-") for number, stage in enumerate(stages)
        ]
        body = tabs([stage.name for stage in stages], panels)
    return document(f"{_name(stages)} · FlexRLHF", join([_title(stages), body]), figures, _STYLES)


def _name(stages: Sequence[StagePlans]) -> str:
    """Algorithms and machines."""
    algorithms = " → ".join(stage.request.spec.name for stage in stages)
    nodes = stages[-1].request.cluster.pools.values()
    machines = " and ".join(
        f"{len(pool)} × {len(pool[0].devices)} {pool[0].device.name}" for pool in nodes
    )
    return f"{algorithms} on {machines}"


def _title(stages: Sequence[StagePlans]) -> Html:
    header = element(
        "header",
        element("div", "FlexRLHF plan", class_="brand"),
        element("h1", _name(stages)),
        class_="title",
    )
    note = element(
        "aside",
        "Every time and size on this page is simulated: computed from the shapes of the models and "
        "the peaks of devices and links, not measured.",
        class_="notes",
        role="note",
    )
    return join([header, note])
