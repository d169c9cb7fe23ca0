"""Weights in int8: how far off products are, what they answer, and that they are never old."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.int8_linear import Int8Linear, can_multiply_int8, rounded
from flexrlhf.learning.rollout.native import NativeEngine
from flexrlhf.learning.rollout.packed_family import PackedRotaryFamily
from flexrlhf.learning.rollout.protocol import Generation, Request, RolloutEngine, Sampling
from flexrlhf.learning.rollout.speculation.settings import Speculation

needs_int8 = pytest.mark.skipif(not can_multiply_int8(), reason="int8 products are not exact here")
REQUESTS = [Request((5, 6, 7), (0, 1, 2)), Request((8, 3, 4, 4, 9), (3, 4)), Request((2,), (5,))]
SAMPLING = Sampling(max_new_tokens=12, end_tokens=(1, 2), seed=4)
SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}


def model_of(family: str, **options: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **options})
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            if parameter.dim() == 1:  # norms of one and biases of zero would hide mistakes
                parameter.add_(0.2 * drawn(len(parameter), seed=number))
    return model.eval()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_number_is_off_by_half_a_scale_at_most() -> None:
    values = drawn(50, 70) * torch.logspace(-6, 6, 50)[:, None]
    values[3] = 0.0
    whole, scale = rounded(values)
    assert whole.dtype == torch.int8
    assert torch.equal(whole.abs().amax(1)[values.abs().amax(1) > 0], torch.full((49,), 127))
    error = (whole.double() * scale.double() - values.double()).abs()
    assert (error <= scale.double() * (0.5 + 1e-5)).all()
    assert torch.equal(whole[3], torch.zeros(70, dtype=torch.int8))


def test_rounding_stays_nan_where_there_is_no_number() -> None:
    product = Int8Linear(drawn(5, 4), None)
    inputs = drawn(3, 4)
    inputs[1, 2] = torch.nan
    assert product(inputs).isnan().all(dim=1).tolist() == [False, True, False]


@needs_int8
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", [(300, 70), (40, 1536)])
def test_a_product_is_that_of_whole_numbers_and_its_error_is_bounded(
    shape: tuple[int, int], with_bias: bool
) -> None:
    weight, factor = drawn(*shape, seed=1), 1 + 0.3 * drawn(shape[1], seed=2)
    bias = drawn(shape[0], seed=3) if with_bias else None
    product = Int8Linear(weight, bias, factor=factor)
    kept = weight.clone()
    weight.zero_()  # the copy is its own
    for leading in ((1,), (33,), (2, 5)):
        inputs, total = drawn(*leading, shape[1], seed=4), drawn(*leading, shape[0], seed=5)
        given = inputs * factor
        (x, x_scale), (w, w_scale) = rounded(given), rounded(kept)
        exact = (x.long() @ w.long().t()).double() * x_scale.double() * w_scale.double().t()
        exact += 0 if bias is None else bias.double()
        torch.testing.assert_close(product(inputs).double(), exact, rtol=2e-6, atol=2e-5)
        before = total.clone()
        added = product.added_to(total, inputs).double()
        torch.testing.assert_close(added, exact + total, rtol=2e-6, atol=2e-5)
        assert torch.equal(total, before)
        true = given.double() @ kept.double().t() + (0 if bias is None else bias.double())
        x_off, w_off = x_scale.double() / 2, w_scale.double().t() / 2
        bound = given.double().abs().sum(-1, keepdim=True) * w_off
        bound = bound + x_off * kept.double().abs().sum(1) + shape[1] * x_off * w_off
        assert ((exact - true).abs() <= bound * (1 + 1e-4) + 1e-9).all()
        relative = (exact - true).norm() / true.norm()
        assert 1e-4 < relative < 0.02


@needs_int8
def test_a_row_is_the_same_bits_whatever_stands_beside_it() -> None:
    product = Int8Linear(drawn(200, 96), None, factor=drawn(96, seed=8))
    rows = drawn(40, 96, seed=9) * torch.logspace(-3, 3, 40)[:, None]
    whole = product(rows)
    for size in (1, 2, 7, 39):
        assert torch.equal(product(rows[:size].clone()), whole[:size])
    assert torch.equal(product(rows.flip(0)), whole.flip(0))


def answers(engine: RolloutEngine, sampling: Sampling = SAMPLING) -> list[Generation]:
    return engine.generate(REQUESTS, sampling)


def check_same(ours: list[Generation], theirs: list[Generation], within: float = 1e-5) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=within)


def nearly(values: Tensor) -> Tensor:
    """What rounding to 255 steps leaves of each row."""
    step = values.abs().amax(-1, keepdim=True) / 127
    return (values / step).round() * step


def imitate(model: Any) -> nn.Module:
    """Rounds weights of a Hugging Face model, and what its own forward pass multiplies by them."""
    if model.config.tie_word_embeddings:  # the input table is not rounded
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = nearly(module.weight.data)
            module.register_forward_pre_hook(lambda _, inputs: (nearly(inputs[0]),))
    return model


@needs_int8
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"attention_bias": True, "mlp_bias": True}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 48}),
    ],
)
def test_log_probs_are_those_of_the_models_own_pass_over_rounded_numbers(
    family: str, options: dict[str, Any]
) -> None:
    model: Any = model_of(family, **options)
    found = answers(NativeEngine(model, weights="int8"))
    rounding: Any = imitate(model_of(family, **options).double())
    plain, off, near = [], [], []
    places = [request for request in REQUESTS for _ in request.sample_ids]
    for request, one in zip(places, found, strict=True):
        tokens = torch.tensor([[*request.prompt_tokens, *one.tokens]])
        first = len(request.prompt_tokens)
        for number, which in enumerate((rounding, model)):
            with torch.no_grad():
                logprobs = which(tokens).logits[0].double().log_softmax(-1)
            expected = logprobs[first - 1 : -1].gather(1, tokens[0, first:, None])[:, 0]
            gap = (torch.tensor(one.logprobs).double() - expected).abs()
            (plain if number else near).append(gap)
        off.append(len(one.tokens))
    assert sum(off) > 30
    # Where a number lies between two steps, float32 and float64 may round it apart.
    assert torch.cat(near).median() < 1e-3
    assert torch.cat(near).mean() < 0.25 * torch.cat(plain).mean()
    assert torch.cat(plain).mean() < 0.2


@needs_int8
def test_answers_are_repeated_and_do_not_depend_on_the_limit() -> None:
    model = model_of("Llama")
    together = answers(NativeEngine(model, weights="int8"))
    check_same(answers(NativeEngine(model, weights="int8")), together, 0.0)
    short = answers(NativeEngine(model, weights="int8"), Sampling(max_new_tokens=2, seed=4))
    for one, whole in zip(short, together, strict=True):  # short answers are rounded likewise
        assert one.tokens == whole.tokens[:2]
        assert one.logprobs == pytest.approx(whole.logprobs[:2], abs=1e-5)
    plain = answers(NativeEngine(model))
    assert (
        max(
            abs(a - b)
            for x, y in zip(together, plain, strict=True)
            for a, b in zip(
                x.logprobs, y.logprobs, strict=False
            )  # from where tokens differ, of others
        )
        > 1e-3
    )


@needs_int8
def test_an_optimiser_step_is_in_the_next_answers() -> None:
    model = model_of("Qwen2")
    engine = NativeEngine(model, weights="int8")
    before = answers(engine)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(3):
        model(torch.tensor([[5, 6, 7 + step]])).logits.logsumexp(-1).sum().backward()
        optimizer.step()
        after = answers(engine)
        assert [one.logprobs for one in after] != [one.logprobs for one in before]
        check_same(after, answers(NativeEngine(model, weights="int8")), 0.0)
        before = after
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses


@needs_int8
def test_installed_weights_are_in_the_next_answers() -> None:
    engine = NativeEngine(model_of("Qwen2"), shares_weights=False, weights="int8")
    other = model_of("Qwen2")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    before = answers(engine)
    addresses = {name: held.tensor.data_ptr() for name, held in engine.targets().items()}
    engine.load_weights(other.state_dict().items(), 1)
    after = answers(engine)
    assert [one.logprobs for one in after] != [one.logprobs for one in before]
    check_same(after, answers(NativeEngine(other, weights="int8")), 0.0)
    assert addresses == {name: held.tensor.data_ptr() for name, held in engine.targets().items()}


@needs_int8
def test_rounded_weights_are_gone_when_the_last_answer_has_ended() -> None:
    engine = NativeEngine(model_of("Llama"), max_sequences=2, weights="int8")
    stream = engine.stream(REQUESTS, SAMPLING)
    stream.take(1)
    assert num_alive() == 1
    stream.take(stream.num_left)
    assert num_alive() == 0


def num_alive() -> int:
    gc.collect()
    return sum(issubclass(type(thing), PackedRotaryFamily) for thing in gc.get_objects())


def test_what_cannot_be_rounded_is_refused() -> None:
    import transformers

    with pytest.raises(ConfigError, match="only float32 on the CPU"):
        NativeEngine(model_of("Llama").double(), weights="int8")
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20)
    )
    with pytest.raises(ConfigError, match="GPT2LMHeadModel has no such products"):
        build_engine("native", gpt2, weights="int8")
    model: Any = model_of("Llama")
    with pytest.raises(ConfigError, match="transformers engine cannot generate with weights in"):
        build_engine("transformers", model, weights="int8")
    with pytest.raises(ConfigError, match="Several tokens would be tried"):
        NativeEngine(model, weights="int8", speculation=Speculation(4))
    engine = NativeEngine(model, weights="int8")
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ConfigError, match="autocast"):
        answers(engine)
    model.model.layers[0].mlp.up_proj.__class__ = type("Split", (nn.Linear,), {})
    with pytest.raises(ConfigError, match="plain linear"):
        NativeEngine(model, weights="int8")


def test_inexact_products_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_at_16_bits(inputs: Tensor, weight: Tensor) -> Tensor:
        """As without an instruction for it: unsigned inputs, and sums of two products."""
        pairs = (inputs.int() + 128).unflatten(1, (-1, 2))[..., None] * weight.int().unflatten(
            0, (-1, 2)
        )
        sums = pairs.sum(2).clamp(-(2**15), 2**15 - 1).sum(1)
        return sums.int() - 128 * weight.int().sum(0)

    monkeypatch.setattr(torch, "_int_mm", cut_at_16_bits)
    assert not can_multiply_int8.__wrapped__()
    monkeypatch.delattr(torch, "_int_mm")
    assert not can_multiply_int8.__wrapped__()
