"""Writes docs/planner-study.md, its numbers and its pictures.

python benchmarks/planner/study.py [--only regret|crossover|growth] [--out FOLDER]
python benchmarks/planner/study.py --show 17     # a case of the grid as a config
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from cases import NUM_CASES, grid
from crossover import compared, scenes
from growth import DEVICES, RUNS, machine, measured
from pictures import pictures
from regret import judged
from study_page import markdown

from flexrlhf.config.yaml_text import write_yaml

DOCS: Final = Path(__file__).parents[2] / "docs"
_PROCESSES: Final = 2


def _at_once(work: Callable[[Any], dict[str, Any]], items: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns what the work makes of each item, in order."""
    with get_context("spawn").Pool(_PROCESSES) as pool:
        return list(pool.imap(work, items, chunksize=1))


def _growth(runs: int, most_devices: int) -> dict[str, Any]:
    """Measures one size after the other, so that nothing of ours runs beside."""
    before = machine()
    sizes = [measured(devices, runs) for devices in DEVICES if devices <= most_devices]
    after = {"load_after": machine()["load"]}
    return {"machine": before | after, "runs": runs, "sizes": sizes}


def _parts(options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    most = options.most_devices
    return {
        "growth": lambda: _growth(options.runs, most),
        "regret": lambda: _at_once(judged, grid(options.cases)),
        "crossover": lambda: _at_once(compared, scenes(most)),
    }


def write(folder: Path, numbers: dict[str, Any]) -> None:
    """Writes numbers, pictures and page."""
    images = folder / "images" / "planner-study"
    images.mkdir(parents=True, exist_ok=True)
    for name, drawn in pictures(numbers).items():
        (images / f"{name}.svg").write_text(drawn + "\n", encoding="utf-8")
    text = json.dumps(numbers, indent=1)
    (folder / "planner-study.json").write_text(text + "\n", encoding="utf-8")
    (folder / "planner-study.md").write_text(markdown(numbers), encoding="utf-8")


def main() -> None:
    """Works out the parts that are asked for; the others stay as they were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("regret", "crossover", "growth"))
    parser.add_argument("--draw", action="store_true", help="only page and pictures")
    parser.add_argument("--out", type=Path, default=DOCS)
    parser.add_argument("--cases", type=int, default=NUM_CASES)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--most-devices", type=int, default=DEVICES[-1])
    parser.add_argument("--show", type=int, metavar="CASE")
    options = parser.parse_args()
    if options.show is not None:
        print(write_yaml(grid(options.cases)[options.show].document()), end="")
        return
    file = options.out / "planner-study.json"
    numbers = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name, part in _parts(options).items():
        if not options.draw and options.only in (None, name):
            numbers[name] = part()
    write(options.out, numbers)


if __name__ == "__main__":
    main()
