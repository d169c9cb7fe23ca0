"""Drives plans for up to 1,024 devices, whose workers sleep, and writes what the driver added.

    python benchmarks/driver/scale.py [--seconds 120] [--only TEXT ...]

A worker sleeps as long as the simulator foresees for each task and transfer, times the factor that
makes an iteration take `--seconds`: what is measured is the driver alone. Nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from cases import CASES, Case
from planned import Planned
from scale_page import Row, page
from sleeping_actors import sleeping_actors
from sleeping_threads import sleeping_threads

from flexrlhf.runtime.executor import Executor
from flexrlhf.runtime.machine import processor_name
from flexrlhf.runtime.workers import Workers

_ROOT: Final = Path(__file__).parents[2]
_DEADLINE_S: Final = 3600.0


def main() -> None:
    """Drives every case and writes the page."""
    options = _options()
    began_s = time.monotonic()
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if options.only and not any(part in f"{case.workers} {case.name}" for part in options.only):
            continue
        row = _driven(case, options.seconds)
        sys.stderr.write(f"{row.line()}\n")
        rows.append(asdict(row))
        document = _facts(time.monotonic() - began_s) | {"rows": rows}
        text = json.dumps(document, indent=1) + "\n"
        options.page.with_suffix(".json").write_text(text, encoding="utf-8")
        options.page.write_text(page(json.loads(text)), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="that an iteration takes")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of cases")
    parser.add_argument("--page", type=Path, default=_ROOT / "docs" / "results" / "driver-scale.md")
    return parser.parse_args()


def _driven(case: Case, seconds: float) -> Row:
    plan = case.planned()
    factor = seconds / plan.simulation.iteration_s
    with _workers(case, plan, factor) as workers:
        return _measured(case, plan, workers, factor)


def _workers(case: Case, plan: Planned, factor: float) -> AbstractContextManager[Workers]:
    sleeping = sleeping_actors if case.workers == "Ray" else sleeping_threads
    return sleeping(plan, plan.seconds(factor))


def _measured(case: Case, plan: Planned, workers: Workers, factor: float) -> Row:
    executor = Executor(workers, start_iteration=0, deadline_s=_DEADLINE_S)
    graph = plan.graph_of(0)
    begun_s, thread_s, process_s = time.monotonic(), time.thread_time(), time.process_time()
    result = executor.run(graph)
    return Row(
        case=case.name,
        workers=case.workers,
        devices=len(plan.plan.devices),
        tasks=len(graph.tasks) + len(graph.transfers),
        reports=len(result.spans),
        factor=factor,
        simulated_s=factor * plan.simulation.iteration_s,
        measured_s=time.monotonic() - begun_s,
        driver_cpu_s=time.thread_time() - thread_s,
        process_cpu_s=time.process_time() - process_s,
    )


def _facts(seconds: float) -> dict[str, Any]:
    return {
        "command": "make driver-scale",
        "commit": _git("rev-parse", "--short", "HEAD"),
        "machine": f"{processor_name()}, Python {platform.python_version()}",
        "at": f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC",
        "minutes": round(seconds / 60, 1),
    }


def _git(*words: str) -> str:
    line: Sequence[str] = ["git", "-C", str(_ROOT), *words]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
