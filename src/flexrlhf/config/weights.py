"""Section `weights`: how new weights reach the engine that generates."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flexrlhf.config.section import Auto, Count, Section, WholeNumber


class Weights(Section):
    """The way of the weights from training to generation."""

    sync_every: Auto | Count = 1
    """Iterations between two updates of the engine's weights; auto: a plan's choice."""
    max_staleness: Annotated[WholeNumber, Field(le=100)] = 0
    """Versions that generating weights may lag behind; 0 is synchronous."""
