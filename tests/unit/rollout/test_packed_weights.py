"""Packed weights give what plain ones do, are never stale, and are there while generating only."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flexrlhf.learning.rollout.decoding import Decoding, Room
from flexrlhf.learning.rollout.native import NativeEngine
from flexrlhf.learning.rollout.packed_family import PackedRotaryFamily, unpackable_reason
from flexrlhf.learning.rollout.packed_linear import PackedLinear, can_pack
from flexrlhf.learning.rollout.protocol import Generation, Request, Sampling

REQUESTS = [Request((5, 6, 7), (0, 1, 2)), Request((8, 3, 4, 4, 9), (3, 4)), Request((2,), (5,))]
SAMPLING = Sampling(max_new_tokens=12, end_tokens=(1, 2), seed=4)
SIZES = {
    "vocab_size": 2200,
    "hidden_size": 128,
    "intermediate_size": 3072,  # gate and up together are large enough for oneDNN
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.1,
}

needs_packing = pytest.mark.skipif(not can_pack(), reason="PyTorch lacks oneDNN's products here")


def model_of(family: str, **options: object) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **options})
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # norms of one and biases of zero would hide mistakes
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def answers(model: nn.Module, *, packs_weights: bool) -> list[Generation]:
    return NativeEngine(model, packs_weights=packs_weights).generate(REQUESTS, SAMPLING)


def check_same(packed: list[Generation], plain: list[Generation]) -> None:
    for ours, theirs in zip(packed, plain, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=3e-5)


@needs_packing
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"attention_bias": True, "mlp_bias": True}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 48}),
    ],
)
def test_packed_weights_give_the_same_answers(family: str, options: dict[str, object]) -> None:
    model = model_of(family, **options)
    assert unpackable_reason(model) is None
    check_same(answers(model, packs_weights=True), answers(model, packs_weights=False))


@needs_packing
@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
@pytest.mark.parametrize(
    ("family", "options"),
    [("Llama", {"attention_bias": True, "mlp_bias": True}), ("Qwen2", {}), ("Qwen3", {})],
)
def test_one_answer_has_the_weights_of_its_beginning(
    monkeypatch: pytest.MonkeyPatch, capability: str, family: str, options: dict[str, object]
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    model, one = model_of(family, **options), REQUESTS[2:]
    packed, plain = (NativeEngine(model, packs_weights=packs) for packs in (True, False))
    for _ in range(2):
        check_same(packed.generate(one, SAMPLING), plain.generate(one, SAMPLING))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.25)


@needs_packing
@pytest.mark.parametrize("rows", [1, 8])
def test_fused_weights_are_copies(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    model, inputs = model_of("Llama"), torch.ones(rows, 128)
    with torch.inference_mode():
        first, second = PackedRotaryFamily(model, rows=rows)._layers
        products = (first.attention_in, first.mlp_in, second.attention_in, second.mlp_in)
        before = [product(inputs).clone() for product in products]
        for parameter in model.parameters():
            parameter.zero_()
        assert all(map(torch.equal, before, [product(inputs) for product in products]))


@needs_packing
@pytest.mark.parametrize("rows", [1, 2, 3, 32])
@pytest.mark.parametrize("shape", [(1100, 720), (48, 40)])  # one of them is large enough for oneDNN
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_products_are_the_same_in_every_layout(
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    shape: tuple[int, int],
    with_bias: bool,
    capability: str,
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(shape, generator=generator)
    bias = torch.randn(shape[0], generator=generator) if with_bias else None
    product = PackedLinear(weight, bias, rows=rows)
    whole = weight.clone()
    weight.zero_()  # the copy is its own
    for leading in ((rows,), (1,), (2, 5)):
        inputs = torch.randn(*leading, shape[1], generator=generator)
        total = torch.randn(*leading, shape[0], generator=generator)
        expected = inputs.double() @ whole.double().T + (0 if bias is None else bias.double())
        kept = total.clone()
        torch.testing.assert_close(product(inputs).double(), expected, rtol=0, atol=3e-4)
        added = product.added_to(total, inputs).double()
        torch.testing.assert_close(added, expected + total, rtol=0, atol=3e-4)
        assert torch.equal(total, kept)


@needs_packing
def test_a_weight_that_is_kept_is_copied_only_for_another_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    weight = torch.randn(6, 4)
    few, more = (PackedLinear(weight, None, rows=rows, is_kept=True) for rows in (1, 8))
    before = few(torch.ones(1, 4)).clone(), more(torch.ones(1, 4)).clone()
    weight.mul_(2)
    assert torch.equal(few(torch.ones(1, 4)), 2 * before[0])
    assert torch.equal(more(torch.ones(1, 4)), before[1])


@needs_packing
def test_an_optimiser_step_is_in_the_next_answers() -> None:
    model = model_of("Qwen2")
    engine = NativeEngine(model)
    before = engine.generate(REQUESTS, SAMPLING)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(3):
        model(torch.tensor([[5, 6, 7 + step]])).logits.logsumexp(-1).sum().backward()
        optimizer.step()
        after = engine.generate(REQUESTS, SAMPLING)
        assert [one.logprobs for one in after] != [one.logprobs for one in before]
        check_same(after, answers(model, packs_weights=False))
        before = after
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses


@needs_packing
def test_copies_are_gone_when_the_last_answer_has_ended() -> None:
    engine = NativeEngine(model_of("Llama"), max_sequences=2)
    stream = engine.stream(REQUESTS, SAMPLING)
    stream.take(1)
    assert num_alive(PackedRotaryFamily) == 1
    stream.take(stream.num_left)
    assert num_alive(PackedRotaryFamily) == 0


@needs_packing
def test_a_thousand_steps_take_no_more_memory() -> None:
    """But for the cache, which grows with the tokens in it."""
    sampling = Sampling(max_new_tokens=1100)
    engine = NativeEngine(model_of("Qwen2", vocab_size=64, intermediate_size=64))
    with torch.inference_mode():
        decoder = engine._decoder(Room(6, 5, sampling.max_new_tokens), None)  # type: ignore[arg-type]
        decoding = Decoding(decoder, REQUESTS, sampling, weight_version=0, at_once=8)
        held = []
        for step in range(1001):
            decoding.advance()
            if step in (20, 1000):
                held.append(num_alive(Tensor))
    assert held[0] == held[1]


def num_alive(kind: type) -> int:
    gc.collect()
    return sum(issubclass(type(thing), kind) for thing in gc.get_objects())


def test_what_cannot_be_packed_is_run_as_it_is() -> None:
    model = model_of("Llama", hidden_size=32, intermediate_size=48, vocab_size=50)
    assert "float32" in str(unpackable_reason(model_of("Llama", hidden_size=32).double()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in str(unpackable_reason(model))
    wrapped: Any = model_of("Llama", hidden_size=32, intermediate_size=48, vocab_size=50)
    wrapped.model.layers[0].mlp.up_proj.__class__ = type("Adapted", (nn.Linear,), {})
    assert "plain linear" in str(unpackable_reason(wrapped))
    assert len(NativeEngine(wrapped).generate(REQUESTS, SAMPLING)) == 6
    gelu = model_of("Llama", hidden_size=32, hidden_act="gelu")
    assert "gelu" in str(unpackable_reason(gelu))
