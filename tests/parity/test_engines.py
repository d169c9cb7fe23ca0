"""The native engine says what the transformers engine, `generate` and a full forward pass say."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.protocol import Generation, Request, RolloutEngine, Sampling

VOCABULARY = 61
END = 1
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
VARIANTS = {
    "llama": ("llama", {}),
    "llama-tied-llama3-rope": ("llama", {"tie": True, "rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": ("llama", {"rope_parameters": LINEAR_ROPE}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-no-groups": ("llama", {"num_key_value_heads": 4}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-tied": ("qwen3", {"head_dim": 16, "tie": True}),
    "gpt2": ("gpt2", {}),
    "gpt2-layer-scale": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
}


def tiny_model(family: str, dtype: torch.dtype = torch.float64, **options: object) -> nn.Module:
    """A random model in training mode, wide enough in its weights to say something."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    if family == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
    tie = options.pop("tie", family == "gpt2")
    config = AutoConfig.for_model(
        family,
        **{**sizes, **options},
        vocab_size=VOCABULARY,
        tie_word_embeddings=tie,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=END,
    )
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name or ".ln_" in name
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if is_norm else 0.35 * noise)
    return model.to(dtype).train()


def requests(num_answers: int = 1) -> list[Request]:
    """Prompts of mixed lengths; the end token, which is the pad token too, occurs inside."""
    draw = random.Random(3)
    prompts = [tuple(draw.randrange(VOCABULARY) for _ in range(n)) for n in (1, 9, 3, 20, 5)]
    prompts[1] = (END, *prompts[1][1:4], END, *prompts[1][5:])
    return [
        Request(prompt, tuple(range(index * num_answers, (index + 1) * num_answers)))
        for index, prompt in enumerate(prompts)
    ]


def full_forward(
    model: nn.Module, asked: Sequence[Request], answers: Sequence[Generation]
) -> list[torch.Tensor]:
    """Logits [T, V] before each response token, from one uncached pass per sequence."""
    prompts = [request.prompt_tokens for request in asked for _ in request.sample_ids]
    logits = []
    model.eval()
    with torch.no_grad():
        for prompt, answer in zip(prompts, answers, strict=True):
            output = model(torch.tensor([[*prompt, *answer.tokens]]))
            logits.append(output.logits[0, len(prompt) - 1 : -1])
    model.train()
    return logits


def huggingface_greedy(model: nn.Module, asked: Sequence[Request], num_new: int) -> list[list[int]]:
    """Responses of `generate`, cut behind their first end token."""
    longest = max(len(request.prompt_tokens) for request in asked)
    rows = [request.prompt_tokens for request in asked]
    tokens = torch.tensor([[END] * (longest - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    model.eval()
    output = model.generate(
        tokens, attention_mask=mask, do_sample=False, max_new_tokens=num_new, pad_token_id=END
    )
    model.train()
    responses = []
    for row in output[:, longest:].tolist():
        stop = row.index(END) + 1 if END in row else len(row)
        responses.append(row[:stop])
    return responses


def answer(engine: RolloutEngine, asked: Sequence[Request], **options: object) -> list[Generation]:
    options = {"max_new_tokens": 24, "end_tokens": (END,), **options}
    return engine.generate(asked, Sampling(**options))


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_those_of_both_references_in_float64(variant: str) -> None:
    family, options = VARIANTS[variant]
    model = tiny_model(family, **options)
    native = answer(build_engine("native", model), requests(), greedy=True)
    reference = answer(build_engine("transformers", model), requests(), greedy=True)
    assert [one.tokens for one in native] == [one.tokens for one in reference]
    expected = huggingface_greedy(model, requests(), 24)
    assert [list(one.tokens) for one in native] == expected
    assert len({one.tokens for one in native}) == len(native)


@pytest.mark.parametrize("name", ["native", "transformers"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logprobs_are_those_of_a_full_forward_pass_in_float64(variant: str, name: str) -> None:
    family, options = VARIANTS[variant]
    model = tiny_model(family, **options)
    asked = requests(num_answers=3)
    answers = answer(build_engine(name, model), asked, temperature=0.7, top_k=20, seed=11)
    for logits_TV, one in zip(full_forward(model, asked, answers), answers, strict=True):
        tokens_T1 = torch.tensor(one.tokens)[:, None]
        logprobs = (logits_TV / 0.7).log_softmax(-1).gather(-1, tokens_T1)[:, 0]
        engine = torch.tensor(one.logprobs, dtype=torch.float64)
        torch.testing.assert_close(engine, logprobs, atol=1e-10, rtol=0)
        kept_TV = logits_TV.masked_fill(logits_TV < logits_TV.topk(20).values[:, -1:], -torch.inf)
        logprobs = (kept_TV / 0.7).log_softmax(-1).gather(-1, tokens_T1)[:, 0]
        engine = torch.tensor(one.sampling_logprobs, dtype=torch.float64)
        torch.testing.assert_close(engine, logprobs, atol=1e-10, rtol=0)


@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3", "gpt2"])
def test_greedy_tokens_agree_up_to_a_near_tie_in_float32(variant: str) -> None:
    family, options = VARIANTS[variant]
    model = tiny_model(family, torch.float32, **options)
    native = answer(build_engine("native", model), requests(), greedy=True)
    reference = answer(build_engine("transformers", model), requests(), greedy=True)
    for ours, theirs, logits_TV in zip(
        native, reference, full_forward(model, requests(), native), strict=True
    ):
        best_T2 = logits_TV.topk(2).values
        ties = (best_T2[:, 0] - best_T2[:, 1] < 1e-4).nonzero()
        end = int(ties[0]) if len(ties) else max(len(ours.tokens), len(theirs.tokens))
        assert ours.tokens[:end] == theirs.tokens[:end]


@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3", "gpt2"])
def test_sampled_tokens_are_those_of_the_reference(variant: str) -> None:
    family, options = VARIANTS[variant]
    model = tiny_model(family, **options)
    asked = requests(num_answers=4)
    options = {"top_p": 0.9, "seed": 2, "end_tokens": (END, 12, 33)}
    native = answer(build_engine("native", model), asked, **options)
    reference = answer(build_engine("transformers", model), asked, **options)
    assert [one.tokens for one in native] == [one.tokens for one in reference]
    assert [one.finished for one in native] == [one.finished for one in reference]
    assert {one.finished for one in native} == {True, False}


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
@pytest.mark.parametrize("is_autocast", [False, True])
def test_bfloat16_logprobs_are_near_those_of_a_full_forward_pass(
    variant: str, is_autocast: bool
) -> None:
    family, options = VARIANTS[variant]
    model = tiny_model(family, torch.float32 if is_autocast else torch.bfloat16, **options)
    asked = requests(num_answers=2)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        answers = answer(build_engine("native", model), asked)
        logits = full_forward(model, asked, answers)
    for logits_TV, one in zip(logits, answers, strict=True):
        assert logits_TV.dtype == torch.bfloat16
        logprobs = logits_TV.float().log_softmax(-1).gather(-1, torch.tensor(one.tokens)[:, None])
        gap = (torch.tensor(one.logprobs) - logprobs[:, 0]).abs().max()
        assert gap < 0.2


def test_a_family_that_native_lacks_falls_to_transformers_with_a_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    model = tiny_model("qwen2", **window)
    with caplog.at_level(logging.WARNING):
        engine = build_engine("native", model)
    assert "sliding-window attention" in caplog.text
    assert engine.capabilities.name == "transformers"
    answers = answer(engine, requests(), greedy=True)
    assert [list(one.tokens) for one in answers] == huggingface_greedy(model, requests(), 24)
