"""The rows of a run, tokenised: what it trains on and what it is evaluated on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from flexrlhf.config.data import Data, DataSource
from flexrlhf.core.algorithm_specs import DataKind
from flexrlhf.core.errors import DataError
from flexrlhf.core.sources import REASONING_GYM
from flexrlhf.learning.data.conversation import ChatFormat
from flexrlhf.learning.data.exchanges import SequenceForm
from flexrlhf.learning.data.preferences import load_preferences
from flexrlhf.learning.data.prompts import load_prompts
from flexrlhf.learning.data.rows import load_rows
from flexrlhf.learning.data.supervised import load_supervised
from flexrlhf.learning.rewards.protocol import Reward


@dataclass(frozen=True, slots=True)
class RunData:
    """Tokenised rows of one kind: prompts, supervised examples or preference pairs."""

    training: Sequence[Any]
    evaluation: Sequence[Any]
    """At most `data.evaluation.samples` of the held-out rows; empty without an evaluation."""


def load_data(
    section: Data,
    kind: DataKind,
    tokenizer: PreTrainedTokenizerBase,
    rewards: Sequence[Reward] = (),
) -> RunData:
    """Loads and tokenises training and evaluation rows.

    Args:
        section: says which rows.
        kind: what the algorithm reads.
        tokenizer: of the role that reads them.
        rewards: score the answers to them.

    Raises:
        DataError: a file is missing, broken or empty, a row is too long, or a reward needs a
            column that is missing.
    """
    source: DataSource | None = getattr(section, kind)
    assert source is not None, "the config was checked"

    def loaded(source: DataSource) -> Sequence[Any]:
        rows = _rows(source)
        with _named(source):
            items = _read(rows, source, section, kind, tokenizer)
            for reward in rewards:
                reward.check(items)
        return items

    evaluation = section.evaluation
    return RunData(
        training=loaded(source),
        evaluation=loaded(evaluation.like(source))[: evaluation.samples] if evaluation else (),
    )


def _rows(source: DataSource) -> Sequence[dict[str, Any]]:
    makes_rows = source.path.startswith(REASONING_GYM)
    return load_rows(
        source.path,
        size=source.size if makes_rows else None,
        seed=source.seed,
        options=source.options,
    )


@contextmanager
def _named(source: DataSource) -> Iterator[None]:
    """Says in which data set the row is that an error is about."""
    try:
        yield
    except DataError as error:
        where = f"{source.path}, whose rows count from 0: "
        raise DataError(where + error.wrong, error.right, error.do) from error


def _read(
    rows: Sequence[dict[str, Any]],
    source: DataSource,
    section: Data,
    kind: DataKind,
    tokenizer: PreTrainedTokenizerBase,
) -> Sequence[Any]:
    if kind == "prompts":
        return load_prompts(
            rows,
            tokenizer,
            prompt_column=source.prompt_column,
            system_prompt=source.system_prompt,
            max_prompt_tokens=section.max_prompt_tokens,
            too_long=section.too_long,
            chat=source.chat,
        )
    if source.prompt_column != "auto":
        rows = [{**row, "prompt": row.get(source.prompt_column)} for row in rows]
    loader = load_supervised if kind == "supervised" else load_preferences
    chat = ChatFormat(source.chat, source.system_prompt)
    return loader(rows, tokenizer, SequenceForm(section.max_tokens, section.too_long, chat))
