"""How a path in a config begins that names something else than a file of this machine."""

from __future__ import annotations

from typing import Final

STAGE: Final = "stage:"
"""Start of a model path that means what an earlier stage has trained."""
HUB: Final = "hub:"
"""Start of a model path that means a model to download."""
REASONING_GYM: Final = "reasoning_gym:"
"""Start of a data path that names a generated task."""
