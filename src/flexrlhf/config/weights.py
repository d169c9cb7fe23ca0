"""Section `weights`: how new weights reach the engine that generates."""

from __future__ import annotations

from typing import Literal

from flexrlhf.config.section import Section


class Weights(Section):
    """The way of the weights from training to generation."""

    sync_every: Literal[1] = 1
    """Iterations between two updates of the engine's weights."""
    max_staleness: Literal[0] = 0
    """Versions that generating weights may lag behind; 0 is synchronous."""
