"""Section `run`: seed, checkpoints, and what is written while training."""

from __future__ import annotations

from typing import Literal

from flexrlhf.config.section import Count, Positive, Section, Seed, WholeNumber


class Run(Section):
    """Book-keeping of a run."""

    seed: Seed = 0
    """Every random choice comes from it; the same seed gives the same run."""
    checkpoint_every: Count = 10
    """Iterations between two checkpoints."""
    keep_checkpoints: Count = 2
    """Newest checkpoints that are kept."""
    trackers: tuple[Literal["tensorboard"], ...] = ("tensorboard",)
    """Where metrics go besides metrics.jsonl."""
    recorded_samples: WholeNumber = 4
    """Answers of an iteration, and of an evaluation, that are written to samples.jsonl."""
    task_deadline_s: Positive = 3600.0
    """Seconds after which a task that has not ended stops the run, with the worker's stack."""
