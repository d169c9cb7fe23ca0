"""A training job by this package, as `flexrlhf train` does it, as turns."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from turns import Turns, assignment, count_steps

import flexrlhf


class Turning:
    """Hears of iterations, and ends them.

    Args:
        turns: whose iterations they are.
        prompt_tokens: of each sample, which do not count.
    """

    def __init__(self, turns: Turns, prompt_tokens: int) -> None:
        self._turns = turns
        self._prompt_tokens = prompt_tokens

    def start_stage(self, name: str, iterations: int, finished: int) -> None:
        """Lets optimiser steps count, now that torch is there."""
        del name, iterations, finished
        count_steps(self._turns)

    def finish_iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Counts the tokens that there were, whatever was asked for."""
        del iteration
        prompts = metrics["samples"] * self._prompt_tokens
        self._turns.end_iteration(
            round(metrics["tokens"] - prompts), reward=metrics.get("reward/mean")
        )


def main() -> None:
    """Trains until no turn is asked for any more."""
    given = assignment()
    job, folder = given["job"], Path(given["folder"])
    turns = Turns(job["turn"]["iterations"], ("flexrlhf", "torch", "transformers"))
    settings = given["settings"]
    overrides = [f"training.threads={settings['threads']}"]
    if "seed" in settings:
        overrides.append(f"run.seed={settings['seed']}")
    config = flexrlhf.load_config(folder / "run.yaml", overrides=overrides)
    with tempfile.TemporaryDirectory(prefix="bench-") as run_dir:
        flexrlhf.train(
            config,
            run_dir=Path(run_dir) / "run",
            listener=Turning(turns, job["prompt_tokens"] if "new_tokens" in job else 0),
        )


if __name__ == "__main__":
    main()
