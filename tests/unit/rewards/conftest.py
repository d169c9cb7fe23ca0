"""Samples as reward functions meet them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flexrlhf.learning.data.experience import Prompt, Sample


@pytest.fixture(scope="session")
def sample() -> Callable[..., Sample]:
    """Returns a maker of samples: three prompt tokens, then one token per word of the text."""

    def make(text: str, *, row: int = 0, number: int = 0, messages=None, **columns) -> Sample:
        num_words = len(text.split())
        return Sample(
            sample_id=number,
            prompt=Prompt(row, (7, 8, 9), "Q: ", messages, columns),
            tokens=torch.tensor([7, 8, 9, *range(num_words)]),
            num_prompt_tokens=3,
            mask=torch.tensor([False] * 3 + [True] * num_words),
            text=text,
        )

    return make


@pytest.fixture
def write_file(tmp_path):
    """Returns a writer of reward files that gives the path of a function in the file."""

    def write(code: str, function: str = "score", name: str = "my_rewards.py") -> str:
        (tmp_path / name).write_text(code)
        return f"{tmp_path / name}:{function}"

    return write
