"""One offline page and a short table from a run folder; called with the folder, writes the page."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


class _CallablePackage(ModuleType):
    """Python binds `flexrlhf.report` to this package, so the function of that name is its call."""

    def __call__(self, run_dir: Path | str) -> Path:
        """Writes `report.html` of a run folder and returns its path.

        Raises:
            ConfigError: the folder holds no run.
        """
        from flexrlhf.report.page import write_report

        return write_report(run_dir)


sys.modules[__name__].__class__ = _CallablePackage
