"""Prompts of which a beginning is kept get the answers of an engine that reads them whole."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.kept_prefixes import BLOCK_TOKENS
from flexrlhf.learning.rollout.protocol import Generation, Request, RolloutEngine, Sampling
from flexrlhf.learning.rollout.speculation.settings import Speculation

VOCABULARY = 43
END = 1
FAMILIES = ("llama", "qwen2", "qwen3", "gpt2")
EXACT = {torch.float64: 1e-12, torch.float32: 2e-4}
MANY = 10_000


def tiny_model(family: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    if family == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        family,
        **sizes,
        vocab_size=VOCABULARY,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=END,
    )
    return AutoModelForCausalLM.from_config(config).to(dtype)


def sampling(seed: int = 0, new_tokens: int = 12) -> Sampling:
    return Sampling(max_new_tokens=new_tokens, seed=seed, end_tokens=(END,))


def same(mine: list[Generation], theirs: list[Generation], dtype: torch.dtype) -> None:
    assert [one.sample_id for one in mine] == [one.sample_id for one in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=EXACT[dtype])
        assert one.sampling_logprobs == pytest.approx(other.sampling_logprobs, abs=EXACT[dtype])


def true_logprobs(
    model: nn.Module, prompt: tuple[int, ...], answer: Generation
) -> tuple[float, ...]:
    """From one pass of transformers over the whole sequence."""
    with torch.no_grad():
        logits = model.eval()(torch.tensor([[*prompt, *answer.tokens]])).logits[0]
    logprobs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return tuple(logprobs[torch.arange(len(answer.tokens)), list(answer.tokens)].tolist())


def conversations(draw: random.Random, num_turns: int) -> Iterator[tuple[list[Request], list[int]]]:
    """Yields the requests of turns; is sent the answers, some of which the next turns go on."""
    system = tuple(draw.randrange(2, VOCABULARY) for _ in range(draw.randrange(3, 40)))
    histories: list[tuple[int, ...]] = [system] * 3
    next_id = 0
    for _ in range(num_turns):
        asked: list[Request] = []
        for history in histories:
            new = tuple(draw.randrange(2, VOCABULARY) for _ in range(draw.randrange(1, 9)))
            size = draw.randrange(1, 4)
            asked.append(Request((*history, *new), tuple(range(next_id, next_id + size))))
            next_id += size
        answers: list[Generation] = yield asked
        by_id = {one.sample_id: one for one in answers}
        going_on = [
            (*request.prompt_tokens, *by_id[draw.choice(request.sample_ids)].tokens)
            for request in asked
        ]
        histories = [draw.choice([*going_on, system]) for _ in range(3)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("most_tokens", [BLOCK_TOKENS, 7 * BLOCK_TOKENS, MANY])
def test_conversations_are_those_of_an_engine_that_keeps_nothing(
    family: str, dtype: torch.dtype, most_tokens: int
) -> None:
    model = tiny_model(family, dtype)
    for seed in range(3):
        keeping = build_engine(
            "native", model, kept_prefix_tokens=most_tokens, max_sequences=(3, 2, 100)[seed]
        )
        turns = conversations(random.Random(seed), num_turns=4)
        asked = next(turns)
        while True:
            answers = keeping.generate(asked, sampling(seed))
            fresh = build_engine("native", model).generate(asked, sampling(seed))
            same(answers, fresh, dtype)
            if dtype == torch.float64:
                prompts = [one.prompt_tokens for one in asked for _ in one.sample_ids]
                for prompt, answer in zip(prompts, answers, strict=True):
                    true = true_logprobs(model, prompt, answer)
                    assert answer.logprobs == pytest.approx(true, abs=1e-10)
            try:
                asked = turns.send(answers)
            except StopIteration:
                break
        counts = keeping.take_prompt_counts()
        assert counts.read <= counts.tokens
        if most_tokens == MANY:
            assert counts.read < counts.tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("new_tokens", [5, 40])
def test_only_what_is_new_is_read(family: str, new_tokens: int) -> None:
    """With 40 new tokens float32 weights are packed, with 5 they are not."""
    draw = random.Random(5)
    model = tiny_model(family, torch.float32)
    engine = build_engine("native", model, kept_prefix_tokens=MANY)
    prompt = tuple(draw.randrange(2, VOCABULARY) for _ in range(37))
    settings = Sampling(max_new_tokens=new_tokens, seed=3)
    (answer, _) = engine.generate([Request(prompt, (0, 1))], settings)
    first = engine.take_prompt_counts()
    assert (first.tokens, first.read) == (37, 37)
    longer = (*prompt, *answer.tokens, 7, 8, 9)
    in_cache = 37 + new_tokens - 1  # the last token was drawn, not read
    kept = in_cache // BLOCK_TOKENS * BLOCK_TOKENS
    engine.generate([Request(longer, (2, 3))], settings)
    counts = engine.take_prompt_counts()
    assert (counts.tokens, counts.read) == (len(longer), len(longer) - kept)
    engine.generate([Request(prompt, (4,))], settings)
    counts = engine.take_prompt_counts()
    assert (counts.tokens, counts.read) == (37, 37 - 2 * BLOCK_TOKENS)
    assert engine.take_prompt_counts().tokens == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_one_call_read_their_common_beginning_once(family: str) -> None:
    draw = random.Random(8)
    system = tuple(draw.randrange(2, VOCABULARY) for _ in range(3 * BLOCK_TOKENS + 4))
    asked = [
        Request((*system, *(draw.randrange(2, VOCABULARY) for _ in range(5 + index))), (index,))
        for index in range(4)
    ]
    model = tiny_model(family)
    engine = build_engine("native", model, kept_prefix_tokens=MANY)
    answers = engine.generate(asked, sampling())
    same(answers, build_engine("native", model).generate(asked, sampling()), torch.float64)
    counts = engine.take_prompt_counts()
    assert counts.read == counts.tokens - 3 * 3 * BLOCK_TOKENS


PROMPT = tuple(2 + place % 40 for place in range(2 * BLOCK_TOKENS + 1))


def read_again(engine: RolloutEngine, sample_id: int) -> int:
    engine.generate([Request(PROMPT, (sample_id,))], sampling())
    return engine.take_prompt_counts().read


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.SGD(weights, lr=0.5, foreach=False),
        lambda weights: torch.optim.SGD(weights, lr=0.5, foreach=True),
        lambda weights: torch.optim.AdamW(weights, lr=0.1, foreach=False),
        lambda weights: torch.optim.AdamW(weights, lr=0.1, foreach=True),
        lambda weights: torch.optim.AdamW(weights, lr=0.1, fused=True),
    ],
)
def test_a_step_of_the_trainer_leaves_nothing_kept(make: object) -> None:
    model = tiny_model("llama")
    engine = build_engine("native", model, kept_prefix_tokens=MANY)
    assert read_again(engine, 0) == len(PROMPT)
    assert read_again(engine, 1) == 1
    trained(model, make(model.parameters()))  # nobody says so to the engine
    asked = [Request(PROMPT, (2,))]
    fresh = build_engine("native", model).generate(asked, sampling())
    same(engine.generate(asked, sampling()), fresh, torch.float64)
    assert engine.take_prompt_counts().read == len(PROMPT)


def test_versions_installs_and_releases_leave_nothing_kept() -> None:
    engine = build_engine("native", tiny_model("llama"), kept_prefix_tokens=MANY)
    other = tiny_model("llama", seed=1)
    changes = [
        lambda: engine.load_weights((), version=1),
        lambda: engine.load_weights(other.state_dict().items(), version=2),
        lambda: engine.install(3, lambda: None),
        lambda: (engine.release_memory(), engine.regain_memory()),
    ]
    for number, change in enumerate(changes):
        read_again(engine, 2 * number)
        assert read_again(engine, 2 * number + 1) == 1
        change()
        assert read_again(engine, 2 * number + 100) == len(PROMPT)


def test_packed_and_plain_weights_share_no_keys() -> None:
    """Packing moves the numbers of a key; float32 weights are packed for 8 new tokens and more."""
    model = tiny_model("qwen3", torch.float32)
    engine = build_engine("native", model, kept_prefix_tokens=MANY)
    for number, new_tokens in enumerate((3, 20, 3, 20)):
        asked = [Request(PROMPT, (number,))]
        fresh = build_engine("native", model).generate(asked, sampling(0, new_tokens))
        same(engine.generate(asked, sampling(0, new_tokens)), fresh, torch.float32)
        assert engine.take_prompt_counts().read == len(PROMPT)


def test_a_stream_that_outlives_a_step_adds_nothing() -> None:
    model = tiny_model("llama")
    engine = build_engine("native", model, kept_prefix_tokens=MANY, max_sequences=2)
    stream = engine.stream([Request(PROMPT, (0, 1, 2, 3))], Sampling(max_new_tokens=20, seed=1))
    stream.take(2)
    trained(model, torch.optim.SGD(model.parameters(), lr=0.5))
    stream.take(2)
    engine.take_prompt_counts()
    asked = [Request((*PROMPT, 3), (9,))]
    fresh = build_engine("native", model).generate(asked, sampling())
    same(engine.generate(asked, sampling()), fresh, torch.float64)
    assert engine.take_prompt_counts().read == len(PROMPT) + 1


def test_streams_leave_their_answers_to_later_calls() -> None:
    model = tiny_model("gpt2")
    engine = build_engine("native", model, kept_prefix_tokens=MANY)
    settings = Sampling(max_new_tokens=20, seed=1)
    stream = engine.stream([Request(PROMPT, (0, 1, 2))], settings, at_once=2)
    answers = stream.take(1) + stream.take(2)
    engine.take_prompt_counts()
    asked = [
        Request((*PROMPT, *one.tokens, 5), (10 + number,)) for number, one in enumerate(answers)
    ]
    fresh = build_engine("native", model).generate(asked, settings)
    same(engine.generate(asked, settings), fresh, torch.float64)
    counts = engine.take_prompt_counts()
    assert counts.read == counts.tokens - 3 * 3 * BLOCK_TOKENS


@pytest.mark.parametrize("most_tokens", [BLOCK_TOKENS, MANY])
@pytest.mark.parametrize("draft", ["lookup", "model"])
def test_it_goes_with_speculation(most_tokens: int, draft: str) -> None:
    model = tiny_model("qwen2")
    draft_model = tiny_model("qwen2", seed=3) if draft == "model" else None
    engine = build_engine(
        "native",
        model,
        kept_prefix_tokens=most_tokens,
        speculation=Speculation(3, draft_model),
        max_sequences=3,
    )
    history = PROMPT
    for turn in range(3):
        asked = [
            Request((*history, 7), (10 * turn, 10 * turn + 1)),
            Request((*history, 9), (10 * turn + 2, 10 * turn + 3)),
        ]
        answers = engine.generate(asked, sampling(turn))
        same(answers, build_engine("native", model).generate(asked, sampling(turn)), torch.float64)
        history = (*history, 7, *answers[0].tokens)
    counts = engine.take_prompt_counts()
    assert counts.read < counts.tokens


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("transformers", {"kept_prefix_tokens": 64}),
        ("native", {"kept_prefix_tokens": 64, "weights": "int8"}),
        ("native", {"kept_prefix_tokens": BLOCK_TOKENS - 1}),
    ],
)
def test_what_cannot_keep_is_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="kept_prefix_tokens"):
        build_engine(name, tiny_model("llama", torch.float32), **options)


def test_an_engine_that_keeps_nothing_counts_nothing() -> None:
    engine = build_engine("native", tiny_model("llama"))
    assert read_again(engine, 0) == 0
