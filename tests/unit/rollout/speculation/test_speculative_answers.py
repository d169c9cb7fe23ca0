"""Speculation changes no answer, and what is drawn has the model's distribution."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.rollout.counter_random import uniforms
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.packed_family import unpackable_reason
from flexrlhf.learning.rollout.protocol import Generation, Request, Sampling
from flexrlhf.learning.rollout.speculation.settings import Speculation

FAMILIES = ("Llama", "Qwen2", "Qwen3", "GPT2")
ENDS = (1, 2)
GROUPS = [
    Request((5, 6, 7, 8, 5, 6, 7), (40, 41, 42, 43)),
    Request((8,), (44, 45, 46)),
    Request((9, 1, 4, 4, 10, 11, 12, 4, 4), (48, 49, 50, 51)),
]


def model_of(family: str, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    """A random model whose answers repeat themselves often enough to be foretold."""
    import transformers

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "head_dim": 8,
    }
    if family == "GPT2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    name = "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    config = getattr(transformers, f"{family}Config")(
        **sizes, vocab_size=23, initializer_range=0.4, eos_token_id=1, bos_token_id=None
    )
    return getattr(transformers, name)(config).to(dtype)


def generate(
    model: nn.Module, sampling: Sampling, most_proposed: int | None, **options: Any
) -> tuple[list[Generation], int]:
    """The answers to `GROUPS`, and how many proposed tokens were drawn."""
    speculation = None if most_proposed is None else Speculation(most_proposed)
    engine = build_engine("native", model, speculation=speculation, **options)
    return engine.generate(GROUPS, sampling), engine.take_counts().accepted


def check_same(ours: Sequence[Generation], theirs: Sequence[Generation], within: float) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=within)
        assert one.sampling_logprobs == pytest.approx(other.sampling_logprobs, abs=within)
        assert (one.sample_id, one.finished) == (other.sample_id, other.finished)


SAMPLINGS = [
    Sampling(max_new_tokens=24, temperature=0.4, seed=3, end_tokens=ENDS),
    Sampling(max_new_tokens=24, temperature=0.6, top_k=9, top_p=0.9, seed=5, end_tokens=ENDS),
    Sampling(max_new_tokens=24, temperature=0.5, min_new_tokens=9, seed=6, end_tokens=(1, 2, 3, 4)),
    Sampling(max_new_tokens=24, greedy=True, end_tokens=ENDS),
    Sampling(max_new_tokens=2, temperature=0.3, seed=1),
    Sampling(max_new_tokens=1, seed=1),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("most_proposed", [1, 4])
def test_answers_are_those_without_speculation_in_float64(family: str, most_proposed: int) -> None:
    model = model_of(family)
    num_accepted = 0
    for sampling in SAMPLINGS:
        plain, _ = generate(model, sampling, None)
        for max_sequences in (256, 3, 1):
            answers, accepted = generate(
                model, sampling, most_proposed, max_sequences=max_sequences
            )
            check_same(answers, plain, 1e-10)
            num_accepted += accepted
    assert num_accepted > 5


def test_answers_are_those_without_speculation_over_packed_weights() -> None:
    model = model_of("Qwen3", dtype=torch.float32)
    assert unpackable_reason(model) is None
    for sampling in SAMPLINGS[:4]:
        plain, _ = generate(model, sampling, None, packs_weights=False)
        answers, accepted = generate(model, sampling, 4, packs_weights=True)
        check_same(answers, plain, 2e-4)
        assert accepted


def test_streamed_answers_are_the_same_and_come_as_they_end() -> None:
    model, sampling = model_of("Llama"), SAMPLINGS[0]
    plain, _ = generate(model, sampling, None)
    engine = build_engine("native", model, speculation=Speculation(4))
    stream = engine.stream(GROUPS, sampling, at_once=4)
    taken = [answer for count in (1, 4, 6) for answer in stream.take(count)]
    check_same(sorted(taken, key=lambda one: one.sample_id), plain, 1e-10)


def test_what_is_counted() -> None:
    model, sampling = model_of("Llama"), Sampling(max_new_tokens=24, temperature=0.3, seed=3)
    engine = build_engine("native", model, speculation=Speculation(4))
    answers = engine.generate(GROUPS, sampling)
    counts = engine.take_counts()
    # Each answer's first token comes from its prompt.
    assert counts.tokens == sum(len(answer.tokens) - 1 for answer in answers)
    assert 0 < counts.accepted < counts.verified < counts.proposed
    assert counts.tokens - counts.steps <= counts.accepted <= counts.tokens
    assert engine.take_counts().steps == 0


@pytest.mark.parametrize("drafted", ["right", "wrong"])
def test_drawn_tokens_have_the_models_distribution(drafted: str) -> None:
    """Chi-squared against every continuation's probability, whatever is proposed."""
    num_samples, length, vocabulary = 8000, 3, 3
    model = narrow_model(vocabulary)
    prompt = (0, 1, 2, 0, 1, 2, 0, 1) if drafted == "right" else (2, 2, 1, 1, 2, 2, 1, 1, 2, 2)
    engine = build_engine("native", model, speculation=Speculation(2))
    answers = engine.generate(
        [Request(prompt, tuple(range(num_samples)))],
        Sampling(max_new_tokens=length, temperature=1.5, seed=17),
    )
    counts = engine.take_counts()
    assert counts.verified > num_samples / 4
    assert 0 < counts.accepted < counts.verified
    seen = Counter(answer.tokens for answer in answers)
    continuations = list(itertools.product(range(vocabulary), repeat=length))
    expected = probabilities(model, prompt, continuations, temperature=1.5)
    assert expected.sum() == pytest.approx(1)
    expected = num_samples * expected
    assert expected.min() > 5
    observed = torch.tensor([seen[one] for one in continuations])
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = torch.tensor(len(continuations) - 1, dtype=torch.float64)
    assert torch.special.gammaincc(freedom / 2, statistic / 2) > 1e-3


def narrow_model(vocabulary: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).double().eval()


def probabilities(
    model: Callable[..., Any],
    prompt: tuple[int, ...],
    continuations: Sequence[tuple[int, ...]],
    *,
    temperature: float,
) -> torch.Tensor:
    """Of each continuation, from one pass over prompt and continuation without a cache."""
    tokens_NT = torch.tensor([[*prompt, *one] for one in continuations])
    with torch.no_grad():
        logits_NTV = model(tokens_NT).logits[:, len(prompt) - 1 : -1] / temperature
    drawn_NT1 = tokens_NT[:, len(prompt) :, None]
    return logits_NTV.log_softmax(-1).gather(-1, drawn_NT1).sum((1, 2)).exp()


def test_an_engine_that_does_not_speculate_says_so() -> None:
    with pytest.raises(ConfigError, match=r"transformers engine does not speculate[\s\S]*native"):
        build_engine("transformers", model_of("Llama"), speculation=Speculation(2))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_models_proposals_change_no_answer_in_float64(family: str) -> None:
    model, draft = model_of(family), model_of("Llama", seed=1)
    for sampling in SAMPLINGS:
        plain, _ = generate(model, sampling, None)
        for max_sequences in (256, 3):
            engine = build_engine(
                "native", model, max_sequences=max_sequences, speculation=Speculation(3, draft)
            )
            check_same(engine.generate(GROUPS, sampling), plain, 1e-10)


def test_a_draft_that_is_the_model_is_always_right() -> None:
    model = model_of("Qwen2")
    for sampling in (*SAMPLINGS[:4], Sampling(max_new_tokens=24, seed=9)):
        engine = build_engine(
            "native", model, max_sequences=4, speculation=Speculation(3, copy.deepcopy(model))
        )
        plain, _ = generate(model, sampling, None)
        check_same(engine.generate(GROUPS, sampling), plain, 1e-10)
        counts = engine.take_counts()
        assert counts.accepted == counts.verified == counts.proposed > counts.steps


def test_a_draft_proposes_what_it_would_draw_itself() -> None:
    """Its own answers with the same random numbers, as far as the two models agree."""
    model, draft = model_of("Llama"), model_of("Qwen2", seed=1)
    sampling = Sampling(max_new_tokens=24, temperature=1.5, seed=2)
    engine = build_engine("native", model, speculation=Speculation(4, draft))
    answers = engine.generate(GROUPS, sampling)
    counts = engine.take_counts()
    num_same = num_drawn = 0
    for group in GROUPS:
        for answer in (one for one in answers if one.sample_id in group.sample_ids):
            for place in range(1, len(answer.tokens)):
                # The draft's next token behind the answer so far, at the same place of the sample.
                prompt = (*group.prompt_tokens, *answer.tokens[:place])
                num_same += drawn_at(draft, prompt, answer.sample_id, place) == answer.tokens[place]
                num_drawn += 1
    agreed = num_same / num_drawn
    assert 0.05 < agreed < 0.95
    assert counts.accepted / counts.verified == pytest.approx(agreed, abs=0.1)


def drawn_at(model: Any, text: tuple[int, ...], sample_id: int, place: int) -> int:
    with torch.no_grad():
        logits_V = model.eval()(torch.tensor([text])).logits[0, -1] / 1.5
    (uniform,) = uniforms(2, [sample_id], [place])
    return int((logits_V.softmax(-1).cumsum(-1) < uniform).sum())


def test_a_draft_that_cannot_propose_is_refused() -> None:
    model = model_of("Llama")
    with pytest.raises(ConfigError, match="knows 4 tokens, the actor 23"):
        build_engine("native", model, speculation=Speculation(2, narrow_model(4)))
