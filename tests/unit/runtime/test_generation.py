"""From the draw of prompts to samples: ids, masks, parts, and evaluation apart from training."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexrlhf.learning.data.experience import Prompt
from flexrlhf.learning.data.order import SeededOrder
from flexrlhf.learning.models.loading import load_tokenizer
from flexrlhf.learning.rollout.protocol import Generation, Request, Sampling
from flexrlhf.runtime.generation import EVALUATION_IDS, Generator, PromptDraw, end_tokens

END = 1
PROMPTS = [Prompt(n, tuple(range(2, 4 + n)), f"prompt {n}") for n in range(3)]
SAMPLING = Sampling(max_new_tokens=4, end_tokens=(END,))


class ReadyAnswers:
    """Answers that have ended already, the shortest first."""

    def __init__(self, answers):
        self._answers = sorted(answers, key=lambda answer: len(answer.tokens))

    @property
    def num_left(self):
        return len(self._answers)

    def take(self, count, on_finished=None):
        taken, self._answers = self._answers[:count], self._answers[count:]
        return taken


@dataclass
class FakeEngine:
    """Answers sample n with n mod 3 words and the end token, or, where that is 2, cut off."""

    weight_version: int = 6
    requests: list[Request] = field(default_factory=list)
    at_once: int | None = None

    def stream(self, requests, sampling, *, at_once=None):
        self.requests, self.at_once = list(requests), at_once
        ids = [i for request in requests for i in request.sample_ids]
        return ReadyAnswers([self._answer(i) for i in ids])

    def _answer(self, sample_id: int) -> Generation:
        words = (4, 5)[: sample_id % 3]
        finished = len(words) < 2
        tokens = (*words, END) if finished else words
        logprobs = tuple(-0.1 * (n + 1) for n in range(len(tokens)))
        return Generation(
            sample_id,
            tokens,
            logprobs,
            tuple(2 * p for p in logprobs),
            finished,
            self.weight_version,
        )


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def generator(engine, tokenizer_folder) -> Generator:
    return Generator(engine, load_tokenizer(str(tokenizer_folder)), torch.float64)


def draw_of(per_iteration: int, num_prompts: int = 10) -> PromptDraw:
    prompts = [Prompt(n, (n,), "") for n in range(num_prompts)]
    return PromptDraw(prompts, SeededOrder(num_prompts, 3), per_iteration, 2)


def test_sample_ids_are_draw_times_answers_plus_number(generator, engine):
    samples = generator.answer([(7, PROMPTS[0]), (8, PROMPTS[2])], 3, SAMPLING)
    assert [request.sample_ids for request in engine.requests] == [(21, 22, 23), (24, 25, 26)]
    assert [request.prompt_tokens for request in engine.requests] == [(2, 3), (2, 3, 4, 5)]
    assert [sample.sample_id for sample in samples] == [21, 22, 23, 24, 25, 26]
    assert [sample.prompt.index for sample in samples] == [0, 0, 0, 2, 2, 2]


def test_samples_leave_as_their_answers_end(generator, engine):
    stream = generator.stream([(7, PROMPTS[0]), (8, PROMPTS[2])], 3, SAMPLING, at_once=4)
    assert engine.at_once == 4
    first = stream.take(2)
    assert [sample.sample_id for sample in first] == [21, 24]
    assert [sample.prompt.index for sample in first] == [0, 2]
    assert stream.num_left == 4
    assert {sample.sample_id for sample in stream.take(4)} == {22, 23, 25, 26}


def test_masks_come_from_lengths_and_hold_the_end_token(generator):
    finished, _, cut = generator.answer([(0, PROMPTS[0])], 3, SAMPLING)
    assert finished.tokens.tolist() == [2, 3, END]
    assert finished.mask.tolist() == [False, False, True]
    assert (finished.finished, cut.finished) == (True, False)
    assert cut.tokens.tolist() == [2, 3, 4, 5]
    assert cut.mask.tolist() == [False, False, True, True]
    assert (cut.num_prompt_tokens, cut.num_response_tokens) == (2, 2)


def test_both_logprobs_stand_at_the_answers_tokens(generator):
    sample = generator.answer([(0, PROMPTS[1])], 3, SAMPLING)[2]
    assert sample.fields["logprobs"].tolist() == [0.0, 0.0, 0.0, -0.1, -0.2]
    assert sample.fields["sampling_logprobs"].tolist() == [0.0, 0.0, 0.0, -0.2, -0.4]
    assert sample.fields["logprobs"].dtype == torch.float64


def test_texts_leave_special_tokens_out(generator):
    samples = generator.answer([(0, PROMPTS[0])], 3, SAMPLING)
    assert [sample.text for sample in samples] == ["", "blue", "blue one"]
    assert {sample.weight_version for sample in samples} == {6}


@pytest.mark.parametrize("num_micro_batches", [1, 2, 3, 4, 7])
def test_parts_of_an_iteration_hold_every_draw_once(num_micro_batches):
    draw = draw_of(per_iteration=7)
    for iteration in (0, 3):
        parts = [
            draw.micro_batch(iteration, i, num_micro_batches) for i in range(num_micro_batches)
        ]
        assert [n for part in parts for n in part] == list(range(7 * iteration, 7 * iteration + 7))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        # The engine's room for sequences is sized by the largest part, rounded up.
        assert max(sizes) == -(-7 // num_micro_batches)


@given(per_iteration=st.integers(1, 50), num_micro_batches=st.integers(1, 50))
def test_any_cut_into_parts(per_iteration, num_micro_batches):
    draw = draw_of(per_iteration)
    parts = [draw.micro_batch(2, i, num_micro_batches) for i in range(num_micro_batches)]
    first = 2 * per_iteration
    assert [n for part in parts for n in part] == list(range(first, first + per_iteration))
    if num_micro_batches <= per_iteration:
        assert all(parts)


def test_draws_go_through_all_prompts_before_one_comes_again():
    draw = draw_of(per_iteration=4)
    for epoch in range(3):
        drawn = [draw.prompt(10 * epoch + n).index for n in range(10)]
        assert sorted(drawn) == list(range(10))
    orders = [[draw.prompt(10 * epoch + n).index for n in range(10)] for epoch in (0, 1)]
    assert orders[0] != orders[1]


def test_a_draw_does_not_depend_on_what_was_drawn_before():
    draw = draw_of(per_iteration=4)
    forward = [draw.prompt(n).index for n in range(30)]
    assert [draw.prompt(n).index for n in reversed(range(30))] == forward[::-1]


@pytest.mark.parametrize("answers_per_prompt", [1, 2, 3, 7])
def test_evaluation_never_shares_an_id_with_training(generator, answers_per_prompt):
    samples = generator.evaluate(PROMPTS, answers_per_prompt, SAMPLING)
    ids = [sample.sample_id for sample in samples]
    assert len(set(ids)) == 3 * answers_per_prompt
    assert min(ids) >= EVALUATION_IDS
    assert max(ids) < 1 << 63  # they are kept as int64
    again = generator.evaluate(PROMPTS, answers_per_prompt, SAMPLING)
    assert [sample.sample_id for sample in again] == ids
    # Ten million iterations of a million answers stay below.
    assert EVALUATION_IDS > 10**13


@pytest.mark.parametrize(
    ("named", "expected"),
    [(None, (END,)), (END, (END,)), (7, (END, 7)), ([7, END, 9], (END, 7, 9)), ([], (END,))],
)
def test_end_tokens_are_those_of_tokenizer_and_generation_config(tokenizer_folder, named, expected):
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=named))
    assert end_tokens(model, load_tokenizer(str(tokenizer_folder))) == expected


def test_no_end_token_at_all(tokenizer_folder):
    tokenizer = load_tokenizer(str(tokenizer_folder))
    tokenizer.eos_token = None
    assert end_tokens(SimpleNamespace(generation_config=None), tokenizer) == ()
