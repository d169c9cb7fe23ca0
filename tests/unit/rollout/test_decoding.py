"""The decode loop's book-keeping, over a decoder whose next token is known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from flexrlhf.learning.rollout.decoding import Decoding, compaction
from flexrlhf.learning.rollout.protocol import Generation, Request, Sampling
from flexrlhf.learning.rollout.waves import Wave

END = 0


class ScriptedDecoder:
    """The answer to prompt (n,) is script[n], token by token, whatever was appended."""

    def __init__(self, script: list[list[int]], *, admits: bool = True) -> None:
        self.script = script
        self.admits = admits
        self.sizes = []
        self.steps = 0
        self._rows: list[tuple[int, int]] = []
        """Number and position of each row's answer."""

    def admit(self, wave: Wave) -> Tensor:
        begun = [(wave.prompts[index][0], 0) for index in wave.prompt_of_answer]
        self._rows += begun
        return self._logits(begun)

    def end(self, answers: Mapping[int, Sequence[int]]) -> None:
        """Keeps nothing."""

    def keep(self, rows: Tensor) -> None:
        self._rows = [self._rows[row] for row in rows.tolist()]

    def step(self, tokens_B: Tensor) -> Tensor:
        assert tokens_B.tolist() == [self.script[n][position] for n, position in self._rows]
        self._rows = [(n, position + 1) for n, position in self._rows]
        self.sizes.append(len(self._rows))
        self.steps += 1
        return self._logits(self._rows)

    def _logits(self, rows: list[tuple[int, int]]) -> Tensor:
        best = torch.tensor([self.script[n][position] for n, position in rows])
        return torch.nn.functional.one_hot(best, 10).float() * 5


def decode(
    decoder: ScriptedDecoder,
    sample_ids: list[int],
    sampling: Sampling,
    *,
    at_once: int = 99,
    weight_version: int = 0,
) -> tuple[list[Generation], list[tuple[int, int]]]:
    """Returns the answers in order of `sample_ids`, and when each ended: (sample id, step)."""
    requests = [Request((n,), (sample_id,)) for n, sample_id in enumerate(sample_ids)]
    decoding = Decoding(decoder, requests, sampling, weight_version=weight_version, at_once=at_once)
    by_id = {}
    ends = []
    while decoding.goes_on:
        for answer in decoding.advance():
            by_id[answer.sample_id] = answer
            ends.append((answer.sample_id, decoder.steps))
    return [by_id[sample_id] for sample_id in sample_ids], ends


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


SCRIPT = [[4, END], [5, 6, 7, 8], [END], [9, 9, END], [3, 2, 1, END]]
SAMPLING = Sampling(max_new_tokens=4, greedy=True, end_tokens=(END,))


def test_rows_leave_when_they_end() -> None:
    decoder = ScriptedDecoder(SCRIPT)
    answers, ends = decode(decoder, [70, 10, 40, 20, 30], SAMPLING, weight_version=6)
    assert [list(answer.tokens) for answer in answers] == SCRIPT
    assert [answer.finished for answer in answers] == [True, False, True, True, True]
    assert all(answer.weight_version == 6 for answer in answers)
    assert decoder.sizes == [4, 3, 2]
    assert ends == [(40, 0), (70, 1), (20, 2), (10, 3), (30, 3)]
    for answer in answers:
        assert len(answer.logprobs) == len(answer.sampling_logprobs) == len(answer.tokens)


def test_an_answer_that_waits_takes_the_place_of_one_that_ended() -> None:
    decoder = ScriptedDecoder(SCRIPT)
    answers, ends = decode(decoder, [0, 1, 2, 3, 4], SAMPLING, at_once=2)
    assert [list(answer.tokens) for answer in answers] == SCRIPT
    # 2 begins when 0 has ended, and ends with its first token; then 3 takes its place, then 4.
    assert ends == [(0, 1), (2, 2), (1, 3), (3, 5), (4, 7)]
    assert decoder.sizes == [2, 1, 1, 1, 2, 1, 1]


def test_where_nothing_may_begin_in_the_midst_the_next_wave_waits() -> None:
    decoder = ScriptedDecoder(SCRIPT, admits=False)
    answers, ends = decode(decoder, [0, 1, 2, 3, 4], SAMPLING, at_once=2)
    assert [list(answer.tokens) for answer in answers] == SCRIPT
    assert ends == [(0, 1), (1, 3), (2, 3), (3, 5), (4, 8)]


def test_without_end_tokens_every_answer_has_the_full_length() -> None:
    decoder = ScriptedDecoder([[END, 1, END], [1, 2, 3]])
    answers, _ = decode(decoder, [0, 1], Sampling(max_new_tokens=3, greedy=True))
    assert [answer.tokens for answer in answers] == [(END, 1, END), (1, 2, 3)]
    assert not any(answer.finished for answer in answers)


def test_the_last_allowed_token_may_be_an_end_token() -> None:
    sampling = Sampling(max_new_tokens=2, greedy=True, end_tokens=(END,))
    (answer,), _ = decode(ScriptedDecoder([[1, END]]), [0], sampling)
    assert answer.finished
    assert answer.tokens == (1, END)
