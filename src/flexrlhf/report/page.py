"""Writes report.html: one page that opens offline, with every chart, table and script in it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from plotly.offline import get_plotlyjs

from flexrlhf.core.atomic_files import write_atomically
from flexrlhf.report.charts import Figure
from flexrlhf.report.markup import Html, element, join
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
        tabs = _stage_tabs(record.stages, figures)
        body = join([overview(record), tabs, run_details(record, "Details of the whole run")])
    else:
        body = stage_view(record, figures)
    return _document(f"{record.name} · FlexRLHF", body, figures)


def _stage_tabs(stages: Sequence[RunRecord], figures: dict[str, Figure]) -> Html:
    """A button and a panel per stage; the last stage, which the others serve, is open."""
    last = stages[-1]
    buttons = (
        element(
            "button",
            stage.name,
            type="button",
            role="tab",
            id=f"tab-{number}",
            aria_controls=f"stage-{number}",
            aria_selected="true" if stage is last else "false",
        )
        for number, stage in enumerate(stages)
    )
    panels = (
        element(
            "section",
            stage_view(stage, figures, prefix=f"s{number}-"),
            id=f"stage-{number}",
            class_="stage",
            role="tabpanel",
            aria_labelledby=f"tab-{number}",
            **({} if stage is last else {"hidden": ""}),
        )
        for number, stage in enumerate(stages)
    )
    bar = element("div", *buttons, class_="tabs", role="tablist", aria_label="Stages")
    return join([bar, *panels])


def _document(title: str, body: Html, figures: dict[str, Figure]) -> str:
    scripts = (get_plotlyjs(), _asset("page.js"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(_asset("page.css"))),
    )
    data = element("script", Html(_safe_json(figures)), type="application/json", id="figures")
    loaded = (element("script", Html(script)) for script in scripts)
    whole = element("html", head, element("body", element("main", body), data, *loaded), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _policy(scripts: Iterable[str]) -> str:
    """Tells the browser to load nothing and to run these scripts only, whatever a sample holds."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    )


def _safe_json(figures: dict[str, Figure]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("flexrlhf.report").joinpath("assets", name).read_text(encoding="utf-8")
