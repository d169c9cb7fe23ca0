"""The decode loop's book-keeping, over a decoder whose next token is known beforehand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flexrlhf.learning.rollout.decoding import compaction, decode
from flexrlhf.learning.rollout.protocol import Sampling

END = 0


class ScriptedDecoder:
    """Row r of the wave says script[r], token by token, whatever was appended."""

    def __init__(self, script: list[list[int]], vocabulary: int = 10) -> None:
        self.script = [list(answer) for answer in script]
        self.vocabulary = vocabulary
        self.sizes = []
        self.position = 0

    def start(self) -> Tensor:
        return self._logits()

    def keep(self, rows: Tensor) -> None:
        self.script = [self.script[row] for row in rows.tolist()]

    def step(self, tokens_B: Tensor) -> Tensor:
        said = [answer[self.position] for answer in self.script]
        assert tokens_B.tolist() == said
        self.position += 1
        return self._logits()

    def _logits(self) -> Tensor:
        self.sizes.append(len(self.script))
        best = torch.tensor([answer[self.position] for answer in self.script])
        return torch.nn.functional.one_hot(best, self.vocabulary).float() * 5


@pytest.mark.parametrize(
    ("is_live", "expected"),
    [
        ([True] * 4, [0, 1, 2, 3]),
        ([False] * 4, []),
        ([True, True, False, False], [0, 1]),
        ([False, True, True, True], [3, 1, 2]),
        ([False, False, True, True], [2, 3]),
        ([True, False, True, False, True], [0, 4, 2]),
    ],
)
def test_live_rows_move_into_holes_only(is_live: list[bool], expected: list[int]) -> None:
    assert compaction(torch.tensor(is_live)).tolist() == expected


def test_rows_leave_when_they_end_and_answers_keep_their_order() -> None:
    script = [[4, END], [5, 6, 7, 8], [END], [9, 9, END], [3, 2, 1, END]]
    decoder = ScriptedDecoder(script)
    sampling = Sampling(max_new_tokens=4, greedy=True, end_tokens=(END,))
    answers = decode(decoder, [70, 10, 40, 20, 30], sampling, weight_version=6)
    assert [list(answer.tokens) for answer in answers] == script
    assert [answer.sample_id for answer in answers] == [70, 10, 40, 20, 30]
    assert [answer.finished for answer in answers] == [True, False, True, True, True]
    assert all(answer.weight_version == 6 for answer in answers)
    assert decoder.sizes == [5, 4, 3, 2]
    for answer in answers:
        assert len(answer.logprobs) == len(answer.sampling_logprobs) == len(answer.tokens)


def test_without_end_tokens_every_answer_has_the_full_length() -> None:
    decoder = ScriptedDecoder([[END, 1, END], [1, 2, 3]])
    answers = decode(decoder, [0, 1], Sampling(max_new_tokens=3, greedy=True), weight_version=0)
    assert [answer.tokens for answer in answers] == [(END, 1, END), (1, 2, 3)]
    assert not any(answer.finished for answer in answers)


def test_the_last_allowed_token_may_be_an_end_token() -> None:
    decoder = ScriptedDecoder([[1, END]])
    sampling = Sampling(max_new_tokens=2, greedy=True, end_tokens=(END,))
    (answer,) = decode(decoder, [0], sampling, weight_version=0)
    assert answer.finished
    assert answer.tokens == (1, END)


def test_answers_are_handed_out_at_the_token_that_ends_them() -> None:
    script = [[4, 4, 4, END], [END], [5, 6, 7, 8], [9, END]]
    decoder = ScriptedDecoder(script)
    sampling = Sampling(max_new_tokens=4, greedy=True, end_tokens=(END,))
    arrived = []
    answers = decode(
        decoder,
        [3, 0, 2, 1],
        sampling,
        weight_version=6,
        on_finished=lambda answer: arrived.append((answer, decoder.position)),
    )
    assert [(answer.sample_id, position) for answer, position in arrived] == [
        (0, 0),
        (1, 1),
        (3, 3),
        (2, 3),
    ]
    assert sorted(answers, key=lambda one: one.sample_id) == sorted(
        (answer for answer, _ in arrived), key=lambda one: one.sample_id
    )
