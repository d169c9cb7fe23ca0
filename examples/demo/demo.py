"""The demo: three stages on one device, judged at the end by the rule that training never saw.

Writes the data, runs demo.yaml, and prints a table: reward first and last, KL, and how often an
answer of the trained policy beats one of the fine-tuned policy under the true rule.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

import flexrlhf  # noqa: E402
from flexrlhf import app  # noqa: E402

GOAL = 0.75
NUM_DUELS = 512


@dataclass(frozen=True)
class DemoResult:
    """What one run of the demo showed."""

    seed: int
    first_reward: float
    last_reward: float
    kl: float
    win_rate: float
    seconds: float
    run_dir: Path


def main() -> None:
    """Runs the demo with one seed or several and exits with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run")
    parser.add_argument("--prepare", action="store_true", help="only write the data")
    options = parser.parse_args()
    if options.prepare:
        prepare(0)
        return
    results = [run_demo(seed) for seed in range(options.seeds)]
    print_table(results)
    if any(result.win_rate < GOAL for result in results):
        sys.exit(f"A win rate is below the goal of {GOAL:.0%}.")


def prepare(seed: int) -> None:
    """Writes the data that demo.yaml reads."""
    from dataset import write_dataset

    write_dataset(FOLDER / "data", seed=seed)


def run_demo(seed: int) -> DemoResult:
    """Trains once and judges the result."""
    started = time.monotonic()
    prepare(seed)
    config = flexrlhf.load_config(FOLDER / "demo.yaml", overrides=[f"run.seed={seed}"])
    run_dir = Path("runs") / f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    result = app.train_with_progress(config, run_dir=run_dir)
    rows = [row for row in result.metrics if "reward/mean" in row]
    return DemoResult(
        seed=seed,
        first_reward=rows[0]["reward/mean"],
        last_reward=rows[-1]["reward/mean"],
        kl=rows[-1]["kl/mean"],
        win_rate=win_rate(run_dir),
        seconds=time.monotonic() - started,
        run_dir=run_dir,
    )


def win_rate(run_dir: Path) -> float:
    """Returns how often the trained policy's answer is truly better; a draw counts half."""
    import random

    from language import true_score, write_prompt

    generator = random.Random("duel")
    prompts = [write_prompt(generator) for _ in range(NUM_DUELS)]
    scores = []
    for stage in ("ppo", "sft"):
        model = run_dir / "stages" / stage / "model" / "actor"
        answers = app.generate(model, prompts=prompts, max_new_tokens=24, seed=7)
        scores.append([true_score(asked, answer) for asked, answer in answers])
    return statistics.fmean(
        (trained > tuned) + 0.5 * (trained == tuned) for trained, tuned in zip(*scores, strict=True)
    )


def print_table(results: list[DemoResult]) -> None:
    """Prints a line per seed and where the reports are."""
    print()
    print("seed  reward first  reward last  KL per token  win rate over fine-tuned  seconds")
    for result in results:
        print(
            f"{result.seed:4}  {result.first_reward:12.3f}  {result.last_reward:11.3f}  "
            f"{result.kl:12.4f}  {result.win_rate:24.1%}  {result.seconds:7.0f}"
        )
    print()
    for result in results:
        print(f"report: {result.run_dir / 'report.html'}")


if __name__ == "__main__":
    main()
