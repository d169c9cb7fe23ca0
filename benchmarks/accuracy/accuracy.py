"""Writes docs/planner-accuracy.md and .json.

python benchmarks/accuracy/accuracy.py
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Final

from left_out import judged_rows
from page import document, goals, markdown
from rows import measured_rows

DOCS: Final = Path(__file__).parents[2] / "docs"


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=DOCS
    )
    return found.stdout.strip() or "unknown"


def main() -> None:
    """Judges all rows and writes both files."""
    begun_s = time.monotonic()
    judged = judged_rows(measured_rows())
    facts = {
        "commit": _commit(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "command": "make accuracy",
        "seconds": round(time.monotonic() - begun_s, 1),
    }
    (DOCS / "planner-accuracy.md").write_text(markdown(judged), encoding="utf-8")
    text = json.dumps(document(judged, facts), indent=1)
    (DOCS / "planner-accuracy.json").write_text(text + "\n", encoding="utf-8")
    for goal in goals(judged):
        print("met " if goal.is_met else "MISS", goal.on, "|", goal.goal, "|", goal.reached)


if __name__ == "__main__":
    main()
