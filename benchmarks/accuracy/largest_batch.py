"""Finds the largest batch under an enforced budget of memory, interleaved against colocated.

    python benchmarks/accuracy/largest_batch.py [--profile FILE] [--mbytes 300]

Every batch is trained with, in processes that the system lets hold so many bytes and no more; what
does not fit ends there. The plan's `max_batch` is found before, for devices of that memory.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from bracketing import bracketed
from largest_batch_page import page
from memory_trial import ITERATIONS, WORKERS, MemoryTrial
from placement_bench import facts, profiled, write_page
from placement_jobs import Case, cases

from flexrlhf.config.yaml_text import write_yaml
from flexrlhf.core.machine import logical_cpus
from flexrlhf.planning.costs.profiled.profile import load_profile
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.evaluation import evaluate
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.stage_plans import cluster_of, with_profile

RESULTS: Final = Path(__file__).parents[2] / "docs" / "results"
PLACEMENTS: Final = {"colocated": "colocated, ZeRO-1", "interleaved": "interleaved"}


@dataclass(frozen=True, slots=True)
class Largest:
    """What one placement can hold."""

    placement: str
    predicted: int
    """The plan's `max_batch`."""
    measured: int
    """The largest batch that was trained with."""
    failed: int
    """The smallest that did not fit."""
    failed_after: int
    """Iterations that it finished before it lacked memory."""
    trials: int


def main() -> None:
    """Predicts, finds the largest batches, writes the page."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="largest-batch-"))
    began_s, load = time.monotonic(), os.getloadavg()[0]
    profile = load_profile(options.profile or profiled(folder))
    trial = MemoryTrial(folder)
    file = folder / "budget.yaml"
    assert profile.workers is not None, "Ray is installed"
    memory_bytes = profile.workers.costs.memory.process_bytes + options.mbytes * 1e6
    budgeted = replace(profile, memory_bytes=WORKERS * memory_bytes)
    file.write_text(write_yaml(budgeted.to_document()), encoding="utf-8")
    rows: list[dict[str, Any]] = []
    for found in _all_largest(trial, file, memory_bytes):
        sys.stderr.write(f"{found}\n")
        rows.append(asdict(found))
    command = shlex.join(["benchmarks/accuracy/largest_batch.py", *sys.argv[1:]])
    document = facts(command, profile, time.monotonic() - began_s) | {
        "mbytes": options.mbytes,
        "iterations": ITERATIONS,
        "load": load,
        "cores": logical_cpus(),
        "rows": rows,
    }
    write_page(options.page, document, page)


def _all_largest(trial: MemoryTrial, profile: Path, memory_bytes: float) -> Iterator[Largest]:
    plans: dict[str, Case] = {
        case.name: case for case in cases() if (case.job, case.workers) == ("ppo", WORKERS)
    }
    for placement, name in PLACEMENTS.items():
        plan = plans[name].plan
        predicted = _predicted(trial, plan, profile)
        finished: dict[int, int] = {}

        def fits(batch: int, plan: Plan = plan, finished: dict[int, int] = finished) -> bool:
            does_fit = trial.fits(plan, batch, memory_bytes)
            finished[batch] = trial.finished_iterations
            sys.stderr.write(f"{plan.strategy}, {batch} samples: {does_fit}\n")
            return does_fit

        measured, failed = bracketed(predicted, fits)
        yield Largest(placement, predicted, measured, failed, finished[failed], len(finished))


def _predicted(trial: MemoryTrial, plan: Plan, profile: Path) -> int:
    """Returns the plan's `max_batch` where all of a device's memory may be used."""
    config = trial.config(1, {"profile": str(profile), "workers": WORKERS})
    request = request_from(config, cluster_of(config.cluster), runnable=True)
    request = replace(with_profile(config, request), memory_fill=1.0)
    evaluation = evaluate(request, plan)
    predicted = evaluation.plan.predicted
    if predicted is None:
        sys.exit(f"The budget is too small: {evaluation.fit.sentence()}")
    return predicted.max_batch


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--profile", type=Path, help="of this machine; without: measured first")
    parser.add_argument("--page", type=Path, default=RESULTS / "largest-batch.md")
    parser.add_argument(
        "--mbytes", type=float, default=300, help="a process may add for its models and passes"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
