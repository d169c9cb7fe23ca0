"""One colour per stage and per role, the same in every chart of every page."""

from __future__ import annotations

from typing import Final

from flexrlhf.core.names import Role, Stage

STAGE_COLOURS: Final[dict[Stage, str]] = {
    "generate": "#4285c9",
    "score": "#e2a130",
    "advantage": "#9a77cf",
    "train": "#3a9f77",
    "sync": "#d4596b",
}

ROLE_COLOURS: Final[dict[Role, str]] = {
    "actor": "#4c78d0",
    "critic": "#2f9e8f",
    "reference": "#8a93a3",
    "reward": "#d98032",
    "shadow_actor": "#8fa9e3",
    "shadow_critic": "#7cc4b9",
}

MAIN_COLOUR: Final = "#4c78d0"
REST_COLOUR: Final = "#a7afbb"
ALARM_COLOUR: Final = "#d4596b"

SERIES_COLOURS: Final = (
    "#4c78d0",
    "#d98032",
    "#2f9e8f",
    "#9a77cf",
    "#d4596b",
    "#8a93a3",
    "#b59a2f",
    "#5aa9c9",
)
"""For series that are neither a stage nor a role, in this order."""


def translucent(colour: str, opacity: float) -> str:
    """Returns `#rrggbb` as an rgba colour of that opacity, 0 to 1."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity:g})"


def stage_colour(stage: str) -> str:
    """Returns the colour of `stage`; grey for what is no stage."""
    return next((value for key, value in STAGE_COLOURS.items() if key == stage), REST_COLOUR)
