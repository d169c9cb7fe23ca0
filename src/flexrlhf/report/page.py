"""Writes report.html of a run folder: every chart, table and sample of the run."""

from __future__ import annotations

from pathlib import Path

from flexrlhf.core.atomic_files import write_atomically
from flexrlhf.report.charts import Figure
from flexrlhf.report.document import document, tabs
from flexrlhf.report.markup import join
from flexrlhf.report.run_folder import RunRecord, read_run
from flexrlhf.report.stage_view import overview, run_details, stage_view

_PAGE_NAME = "report.html"


def write_report(run_dir: Path | str) -> Path:
    """Writes `report.html` into the run folder, and into that of each of its stages.

    Returns:
        The page of `run_dir`; of several stages it shows all.

    Raises:
        ConfigError: the folder does not exist or has no metrics.
        OSError: the page cannot be written.
    """
    record = read_run(run_dir)
    for stage in record.stages:
        write_atomically(stage.path / _PAGE_NAME, report_page(stage))
    page = record.path / _PAGE_NAME
    write_atomically(page, report_page(record))
    return page


def report_page(record: RunRecord) -> str:
    """Returns the whole page of a run as HTML."""
    figures: dict[str, Figure] = {}
    if record.stages:
        panels = [
            stage_view(stage, figures, prefix=f"s{number}-")
            for number, stage in enumerate(record.stages)
        ]
        body = join(
            [
                overview(record),
                tabs([stage.name for stage in record.stages], panels),
                run_details(record, "Details of the whole run"),
            ]
        )
    else:
        body = stage_view(record, figures)
    return document(f"{record.name} · FlexRLHF", body, figures)
