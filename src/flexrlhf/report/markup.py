"""HTML elements that escape whatever they are given, so that no sample can become markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


class Html(str):
    """Text that is markup already; anything else is escaped when it becomes part of an element."""

    __slots__ = ()


_VOID_ELEMENTS = frozenset({"br", "hr", "meta"})


def element(name: str, /, *children: str, **attributes: str) -> Html:
    """Returns the element `name` around `children`.

    Args:
        name: the tag.
        children: `Html` is taken as it is, other text is escaped.
        attributes: escaped; a trailing underscore is dropped and others become hyphens, so
            `class_` is `class` and `data_chart` is `data-chart`.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    if name in _VOID_ELEMENTS:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[str]) -> Html:
    """Returns the parts one after another, those that are not `Html` escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], **attributes: str) -> Html:
    """Returns a table that scrolls sideways inside its own box where the window is narrow."""
    head = element("tr", *(element("th", cell, scope="col") for cell in header))
    body = (element("tr", *(element("td", cell) for cell in row)) for row in rows)
    inner = element("table", element("thead", head), element("tbody", *body), **attributes)
    return element("div", inner, class_="table-box")


def folded(title: str, *children: str, is_open: bool = False) -> Html:
    """Returns a block that shows its title until it is clicked."""
    summary = element("summary", title)
    return element("details", summary, *children, **({"open": ""} if is_open else {}))
