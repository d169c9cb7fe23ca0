"""One page that opens offline: styles, scripts and figures are all in it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

from plotly.offline import get_plotlyjs

from flexrlhf.report.charts import Figure
from flexrlhf.report.markup import Html, element, join


def document(
    title: str, body: Html, figures: Mapping[str, Figure], styles: Sequence[str] = ("page.css",)
) -> str:
    """Returns the whole page as HTML.

    Args:
        title: of the window.
        body: refers to figures as `data-figure`.
        figures: by the id that the body uses.
        styles: style sheets among the assets.
    """
    scripts = (get_plotlyjs(), _asset("page.js"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        *(element("style", Html(_asset(style))) for style in styles),
    )
    data = element("script", Html(_safe_json(figures)), type="application/json", id="figures")
    loaded = (element("script", Html(script)) for script in scripts)
    whole = element("html", head, element("body", element("main", body), data, *loaded), lang="en")
    return f"<!doctype html>\n{whole}\n"


def tabs(names: Sequence[str], panels: Iterable[Html]) -> Html:
    """Returns a button and a panel per stage; the last stage, which the others serve, is open."""
    last = len(names) - 1
    buttons = (
        element(
            "button",
            name,
            type="button",
            role="tab",
            id=f"tab-{number}",
            aria_controls=f"stage-{number}",
            aria_selected="true" if number == last else "false",
        )
        for number, name in enumerate(names)
    )
    sections = (
        element(
            "section",
            panel,
            id=f"stage-{number}",
            class_="stage",
            role="tabpanel",
            aria_labelledby=f"tab-{number}",
            **({} if number == last else {"hidden": ""}),
        )
        for number, panel in enumerate(panels)
    )
    bar = element("div", *buttons, class_="tabs", role="tablist", aria_label="Stages")
    return join([bar, *sections])


def _policy(scripts: Iterable[str]) -> str:
    """Tells the browser to load nothing and to run these scripts only, whatever a sample holds."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    )


def _safe_json(figures: Mapping[str, Figure]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("flexrlhf.report").joinpath("assets", name).read_text(encoding="utf-8")
