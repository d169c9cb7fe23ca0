"""FlexRLHF: RLHF training that decides by itself where each model of the loop runs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexrlhf.app import RunResult as RunResult
    from flexrlhf.app import load as load_config
    from flexrlhf.app import plan as plan
    from flexrlhf.app import report as report
    from flexrlhf.app import train as train

__all__ = ["RunResult", "load_config", "plan", "report", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Loads the public names when they are first used, so that `import flexrlhf` stays fast."""
    if name not in __all__:
        raise AttributeError(f"module 'flexrlhf' has no attribute {name!r}")
    if name == "report":  # the package of that name, which can be called
        return importlib.import_module("flexrlhf.report")
    app = importlib.import_module("flexrlhf.app")
    return getattr(app, "load" if name == "load_config" else name)
