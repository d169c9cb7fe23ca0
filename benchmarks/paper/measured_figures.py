"""Draws Figures 3 and 4 as tiny processes ran them.

    python benchmarks/paper/measured_figures.py

Trains the four examples/workers/figure*.yaml, up to seven processes on this machine, and draws the
last iteration that each measured. Names and labels are those of the simulated pictures.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from figures import EXAMPLES, Example

from flexrlhf.core.timeline import Timeline, read_trace
from flexrlhf.report.markup import Html
from flexrlhf.report.timeline_picture import timeline_picture

_ROOT: Final = Path(__file__).parents[2]
_IMAGES: Final = _ROOT / "docs" / "images" / "paper"
_LIMIT_S: Final = 600.0


def main() -> None:
    """Runs all and writes their pictures."""
    with tempfile.TemporaryDirectory(prefix="figures-") as folder:
        for example in EXAMPLES.values():
            timeline = _run(example.name, Path(folder) / example.name)
            path = _IMAGES / f"measured-{example.name}.svg"
            path.write_text(_picture(example, timeline) + "\n", encoding="utf-8")
            print(path.relative_to(_ROOT))


def _run(name: str, folder: Path) -> Timeline:
    config = _ROOT / "examples" / "workers" / f"{name}.yaml"
    line = [sys.executable, "-m", "flexrlhf.cli", "train", str(config), "--run-dir", str(folder)]
    subprocess.run(line, check=True, timeout=_LIMIT_S, stdout=subprocess.DEVNULL)
    return read_trace(folder / "timeline.json")["measured"]


def _picture(example: Example, timeline: Timeline) -> Html:
    last = max(timeline.iterations)
    tracks = sorted({s.track for s in timeline.spans if s.track.startswith("device ")})
    lanes = {track: f"W{int(track.removeprefix('device ')) + 1}" for track in tracks}
    spans = (s for s in timeline.spans if s.iteration == last and s.track in lanes)
    title = example.course.replace("simulated", "measured")
    return timeline_picture(spans, lanes, title=title, label=example.label)


if __name__ == "__main__":
    main()
