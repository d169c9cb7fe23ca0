"""Section `placement`: which devices hold which role."""

from __future__ import annotations

from typing import Literal

from flexrlhf.config.section import Section


class Placement(Section):
    """What the planner is held to."""

    strategy: Literal["auto", "colocated"] = "auto"
    """Where roles go; on one device everything is colocated."""
