"""Section `data`: which rows are read, and how they become tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from flexrlhf.config.section import Count, Flag, Options, Section, Text, WholeNumber


class DataSource(Section):
    """One set of rows."""

    path: Text
    """File or folder (jsonl, json, parquet, csv, saved data set), or `reasoning_gym:TASK`."""
    size: Count = 1000
    """Rows to make; for `reasoning_gym:TASK` only."""
    seed: WholeNumber = 0
    """Row i of `reasoning_gym:TASK` is made from seed + i; files are not affected."""
    options: Options = Field(default={})
    """Options of the `reasoning_gym` task."""
    prompt_column: Text = "auto"
    """Column that holds the prompt; auto finds the usual names."""
    chat: Literal["auto", "always", "never"] = "auto"
    """Whether prompts pass through the chat template; auto: when the row is a conversation."""
    system_prompt: Text | None = None
    """System message put before every conversation."""


class EvaluationSource(DataSource):
    """Held-out rows, looked at while training."""

    seed: WholeNumber = 1_000_000
    """As in the training rows, but far from 0, so that the generated rows are others."""
    every: Count = 10
    """Iterations between two evaluations; the first and the last state are always evaluated."""
    samples: Count = 64
    """Rows per evaluation, at most; the same ones each time."""
    greedy: Flag = True
    """Take the most likely token instead of sampling."""
    samples_per_prompt: Count = 1
    """Answers per row, averaged; more than 1 needs `greedy: false`."""


class Data(Section):
    """The data sets; an algorithm reads one of the first three."""

    prompts: DataSource | None = None
    """Prompts to answer: ppo, grpo."""
    preferences: DataSource | None = None
    """Pairs of a chosen and a rejected answer: reward_model."""
    supervised: DataSource | None = None
    """Prompts with the answer to imitate: sft."""
    evaluation: EvaluationSource | None = None
    """Held-out rows of the kind that the algorithm reads."""
    max_prompt_tokens: Count = 512
    """Longest prompt, in tokens."""
    max_tokens: Count = 1024
    """Longest prompt and answer together, in tokens: preferences and supervised rows."""
    too_long: Literal["error", "drop"] = "error"
    """What to do with a longer row: stop before the run, or leave it out and say how many."""
