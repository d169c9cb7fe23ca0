"""Section `data`: which rows are read, and how they become tokens."""

from __future__ import annotations

from pydantic import Field

from flexrlhf.config.section import (
    AtLeastOne,
    Auto,
    Count,
    Flag,
    Options,
    Section,
    Text,
    WholeNumber,
)
from flexrlhf.core.names import ChatMode, TooLong


class RowSource(Section):
    """Where rows come from."""

    path: Text
    """File or folder (jsonl, json, parquet, csv, saved data set), or `reasoning_gym:TASK`."""
    size: Count = 1000
    """Rows to make; for `reasoning_gym:TASK` only."""
    seed: WholeNumber = 0
    """Row i of `reasoning_gym:TASK` is made from seed + i; files are not affected."""
    options: Options = Field(default={})
    """Options of the `reasoning_gym` task."""


class DataSource(RowSource):
    """One set of rows."""

    prompt_column: Text = "auto"
    """Column that holds the prompt; auto finds the usual names."""
    chat: ChatMode = "auto"
    """Whether prompts pass through the chat template; auto: when the row is a conversation."""
    system_prompt: Text | None = None
    """System message put before every conversation."""


class EvaluationSource(RowSource):
    """Held-out rows, looked at while training."""

    seed: WholeNumber = 1_000_000
    """As in the training rows, but far from 0, so that the generated rows are others."""
    prompt_column: Text | None = None
    """Column that holds the prompt; null: as the training rows."""
    chat: ChatMode | None = None
    """Whether prompts pass through the chat template; null: as the training rows."""
    system_prompt: Text | None = None
    """System message put before every conversation; null: as the training rows."""
    every: Count = 10
    """Iterations between two evaluations; the first and the last state are always evaluated."""
    samples: Count = 64
    """Rows per evaluation, at most; the same ones each time."""
    greedy: Flag = True
    """Take the most likely token instead of sampling; where answers are generated."""
    samples_per_prompt: Count = 1
    """Answers per row, averaged; more than 1 needs `greedy: false`."""

    def like(self, training: DataSource) -> DataSource:
        """Returns the rows in the form of the training rows, but for what this section gives."""
        return DataSource(
            path=self.path,
            size=self.size,
            seed=self.seed,
            options=self.options,
            prompt_column=self.prompt_column or training.prompt_column,
            chat=self.chat or training.chat,
            system_prompt=self.system_prompt or training.system_prompt,
        )


class Data(Section):
    """The data sets; an algorithm reads one of the first three."""

    prompts: DataSource | None = None
    """Prompts to answer: ppo, grpo and what else generates."""
    preferences: DataSource | None = None
    """Pairs of a chosen and a rejected answer: reward_model, dpo, ipo, kto."""
    supervised: DataSource | None = None
    """Prompts with the answer to imitate: sft."""
    evaluation: EvaluationSource | None = None
    """Held-out rows of the kind that the algorithm reads."""
    max_prompt_tokens: Count = 512
    """Longest prompt, in tokens."""
    mean_prompt_tokens: Auto | AtLeastOne = "auto"
    """Length of a prompt that a plan reckons with, on average; auto: `max_prompt_tokens`."""
    max_tokens: Count = 1024
    """Longest prompt and answer together, in tokens: preferences and supervised rows."""
    too_long: TooLong = "error"
    """What to do with a longer row: stop before the run, or leave it out and say how many."""
