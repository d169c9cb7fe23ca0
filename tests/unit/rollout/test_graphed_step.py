"""Captured decode steps give what the step gives; what cannot be captured is said, not done.

A CPU captures nothing: here "captured" is the function that would be, bound to the addresses at
which it was captured. So whatever a graph would read that has moved is read where it was.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flexrlhf.learning.models.families import FAMILIES
from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.rollout.cuda_capture import Capture, Replay
from flexrlhf.learning.rollout.decoding import Decoding, Room
from flexrlhf.learning.rollout.graphed_step import GraphedStep, StepGraphs
from flexrlhf.learning.rollout.kv_cache import KVCache
from flexrlhf.learning.rollout.native import NativeEngine, native_decoder
from flexrlhf.learning.rollout.protocol import Generation, Request, Sampling
from flexrlhf.learning.rollout.waves import WaitingRequests

VOCABULARY = 61
ENDS = (1, 12, 33)
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
GPT2_SIZES = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 512,
    "initializer_range": 0.3,
}
LIMITS = {"float64": 1e-12, "float32": 1e-4}
families = pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])


class Rerun:
    """See `Capture`; counts what is captured, and what of it is still there."""

    def __init__(self) -> None:
        self.num_captured = 0
        self.num_runs = 0
        self.kept: weakref.WeakSet[Replay] = weakref.WeakSet()

    def __call__(self, work: Callable[[], None]) -> Replay:
        work()
        self.num_captured += 1

        def again() -> None:
            self.num_runs += 1
            work()

        self.kept.add(again)
        return again


def on_cpu(capture: Capture) -> StepGraphs:
    return StepGraphs(device_type="cpu", make_capture=lambda device: capture)


def policy(family: str, dtype: str) -> Any:
    sizes = GPT2_SIZES if family == "gpt2" else SIZES
    return load_policy(
        ModelSource(architecture={"model_type": family, **sizes}, dtype=dtype, seed=1)
    ).eval()


def requests() -> list[Request]:
    """Fifteen answers to prompts of mixed lengths, the longest of which comes late."""
    lengths = (3, 9, 1, 5, 40)
    return [
        Request(tuple((7 * row + place) % VOCABULARY for place in range(length)), ids)
        for row, length in enumerate(lengths)
        for ids in [tuple(range(3 * row, 3 * row + 3))]
    ]


def answers(
    model: nn.Module, graphs: StepGraphs | None, *, growth: int = 200, new_tokens: int = 24
) -> list[Generation]:
    """Answers of at most seven at a time, in a cache that grows by so many tokens."""
    sampling = Sampling(max_new_tokens=new_tokens, end_tokens=ENDS, seed=5)
    with torch.inference_mode():
        room = Room(rows=7, prompt_tokens=400, new_tokens=growth)
        decoder = native_decoder(model, room, packs_weights=False, graphs=graphs)
        decoding = Decoding(decoder, requests(), sampling, weight_version=0, at_once=7)
        ended: list[Generation] = []
        while decoding.goes_on:
            ended += decoding.advance()
    return sorted(ended, key=lambda one: one.sample_id)


def check_same(found: list[Generation], expected: list[Generation], limit: float) -> None:
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    for one, other in zip(found, expected, strict=True):
        ours, theirs = torch.tensor(one.logprobs), torch.tensor(other.logprobs)
        torch.testing.assert_close(ours, theirs, atol=limit, rtol=0)


@families
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("growth", [200, 3])
def test_answers_are_those_without_while_rows_leave_and_enter(
    family: str, dtype: str, growth: int
) -> None:
    model = policy(family, dtype)
    expected = answers(model, None, growth=growth)
    assert len({len(one.tokens) for one in expected}) > 2
    capture = Rerun()
    check_same(answers(model, on_cpu(capture), growth=growth), expected, LIMITS[dtype])
    # A cache that grows every third token, and at each longer prompt, drops what it had.
    assert capture.num_captured > (10 if growth == 3 else 2)
    assert capture.num_runs > capture.num_captured


def test_steps_beyond_the_cached_tokens_of_one_graph_take_the_next() -> None:
    model = policy("llama", "float64")
    sampled = [answers(model, graphs, new_tokens=150) for graphs in (None, on_cpu(Rerun()))]
    assert max(len(one.tokens) for one in sampled[0]) > 1
    check_same(sampled[1], sampled[0], LIMITS["float64"])


@families
def test_logits_in_bfloat16_are_as_near_as_it_rounds(family: str) -> None:
    """Products of other numbers of rows are rounded otherwise, so tokens drawn might differ."""
    model = policy(family, "bfloat16")
    room = Room(rows=7, prompt_tokens=400, new_tokens=5)
    wave = WaitingRequests(requests()).take(7, keeps_groups=False)
    plain, graphed = (
        native_decoder(model, room, packs_weights=False, graphs=graphs)
        for graphs in (None, on_cpu(Rerun()))
    )
    tokens_B = plain.admit(wave).argmax(dim=-1)
    graphed.admit(wave)
    for step in range(12):
        expected_BV = plain.step(tokens_B)
        found_BV = graphed.step(tokens_B)
        assert found_BV.dtype == torch.bfloat16
        limit = 2.0**-5 * float(expected_BV.abs().max())  # a few units in the last of 8 bits
        torch.testing.assert_close(found_BV, expected_BV, atol=limit, rtol=0)
        tokens_B = expected_BV.argmax(dim=-1)
        if step in {4, 8}:
            rows = torch.arange(len(tokens_B) - 2)
            plain.keep(rows)
            graphed.keep(rows)
            tokens_B = tokens_B[:-2]


class Steps:
    """Steps of a model over a cache of prompts, whose contents are random."""

    def __init__(self, lengths: list[int], capture: Capture, *, growth: int = 300) -> None:
        self.model = policy("llama", "float64")
        self.graphs = on_cpu(capture)
        self.family = FAMILIES["LlamaForCausalLM"](self.model)
        self.family.prepare(400)
        self.cache = KVCache(
            self.family.shape, growth=growth, dtype=torch.float64, device=torch.device("cpu")
        )
        self.cache.add(lengths)
        generator = torch.Generator().manual_seed(2)
        for both in self.cache.within(self.cache.num_slots, self.cache.num_places):
            for slots in both:
                slots.copy_(torch.randn(slots.shape, generator=generator, dtype=torch.float64))
        step = self.graphs.step(self.model, self.family, self.cache)
        assert step is not None
        self.step: GraphedStep = step

    def __call__(self) -> Tensor:
        self.cache.lengthen()
        logits = self.step((torch.arange(len(self.cache.lengths)) + 3) % VOCABULARY)
        assert logits is not None
        return logits.clone()


@pytest.fixture(autouse=True)
def _without_gradients() -> Any:
    with torch.no_grad():
        yield


def test_rows_that_fill_a_graph_touch_no_place_that_is_in_use() -> None:
    steps = Steps([4, 7, 2, 5, 6, 3, 9], Rerun())
    steps.cache.keep(torch.arange(5))  # six rows are computed, five are in use
    before = [[slots.clone() for slots in both] for both in steps.cache.within(7, 300)]
    steps()
    is_written_RT = torch.zeros(7, 300, dtype=torch.bool)
    is_written_RT[torch.arange(5), steps.cache.lengths - 1] = True
    is_written_RT[5, 0] = True  # of a slot that no sequence has
    for old, new in zip(before, steps.cache.within(7, 300), strict=True):
        for were, are in zip(old, new, strict=True):
            changes_RT = (were != are).any(dim=-1).any(dim=1)
            assert torch.equal(changes_RT, is_written_RT)


def test_rows_do_not_depend_on_those_that_fill_a_graph() -> None:
    whole, fewer = (Steps([4, 7, 2, 5, 6, 3, 9], Rerun()) for _ in range(2))
    fewer.cache.keep(torch.arange(5))
    torch.testing.assert_close(fewer(), whole()[:5], atol=1e-12, rtol=0)


def test_a_weight_changed_in_place_is_seen_and_nothing_is_captured_anew() -> None:
    capture = Rerun()
    steps, others = Steps([4, 7], capture), Steps([4, 7], Rerun())
    for one in (steps, others):
        one()
        one.model.model.layers[1].mlp.down_proj.weight.mul_(1.5)
    found = steps()
    assert capture.num_captured == 1
    others.graphs = on_cpu(Rerun())
    step = others.graphs.step(others.model, others.family, others.cache)
    assert step is not None
    others.step = step
    assert torch.equal(found, others())


@pytest.mark.parametrize("way", ["data", "parameter"])
def test_a_weight_that_lies_elsewhere_lets_steps_be_captured_anew(way: str) -> None:
    capture = Rerun()
    steps = Steps([4, 7], capture)
    steps()
    norm = steps.model.model.norm
    if way == "data":
        norm.weight.data = norm.weight.data.clone()
    else:
        norm.weight = nn.Parameter(norm.weight.clone())
    steps()
    assert capture.num_captured == 2
    steps()
    assert capture.num_captured == 2
    assert len(capture.kept) == 1


def test_graphs_of_a_cache_that_moved_are_gone() -> None:
    capture = Rerun()
    steps = Steps([4, 7], capture, growth=2)
    for _ in range(7):
        steps()
    assert capture.num_captured == 3  # at 8, 10 and 13 tokens: growth is of what is then needed
    assert len(capture.kept) == 1


def test_no_more_graphs_are_kept_than_sixteen() -> None:
    capture = Rerun()
    steps = Steps([4] * 40, capture)
    for begun in ([], [150] * 39):
        if begun:
            steps.cache.add(begun)
        for num_rows in range(40, 0, -1):
            steps.cache.keep(torch.arange(num_rows))
            steps()
    assert steps.cache.num_moves == 1
    assert capture.num_captured > 20
    assert len(capture.kept) == 16


def _raises(work: Callable[[], None]) -> Replay:
    raise RuntimeError("operation not permitted when stream is capturing.\nCompile with more.")


def _forgets(work: Callable[[], None]) -> Replay:
    work()
    return lambda: None


@pytest.mark.parametrize(
    ("capture", "words"),
    [
        (_raises, "operation not permitted when stream is capturing"),
        (_forgets, "a captured step gives other logits than the step itself"),
    ],
)
def test_without_a_good_capture_steps_are_made_as_before_and_the_reason_is_said_once(
    capture: Capture, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = policy("qwen2", "float64")
    graphs = on_cpu(capture)
    with caplog.at_level(logging.WARNING):
        found = [answers(model, graphs) for _ in range(2)]
    assert caplog.messages == [f"Decode steps are not captured: {words}."]
    for one in found:
        check_same(one, answers(model, None), 0.0)


def test_casts_and_split_weights_are_not_captured(caplog: pytest.LogCaptureFixture) -> None:
    model, capture = policy("llama", "float32"), Rerun()
    with caplog.at_level(logging.WARNING):
        with torch.autocast("cpu", torch.bfloat16):
            answers(model, on_cpu(capture))
        model.model.norm.weight = nn.Parameter(torch.ones(32, device="meta"))
        cache = KVCache(
            FAMILIES["LlamaForCausalLM"](model).shape,
            growth=1,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        family = FAMILIES["LlamaForCausalLM"](model)
        assert on_cpu(capture).step(model, family, cache) is None
    assert [message.split(": ")[1][:20] for message in caplog.messages] == [
        "autocast casts weigh",
        "the model does not l",
    ]
    assert capture.num_captured == 0


def test_a_cpu_captures_nothing_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    engine = NativeEngine(policy("llama", "float32"), packs_weights=False)
    with caplog.at_level(logging.DEBUG):
        engine.generate(requests()[:1], Sampling(max_new_tokens=3))
    assert caplog.messages == []
