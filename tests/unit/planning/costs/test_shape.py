from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.costs.shape import ModelShape

TINY = ModelShape(
    name="tiny", layers=2, hidden=8, ffn=16, heads=4, kv_heads=2, head_dim=2, vocab=10
)
LLAMA_7B = ModelShape(
    name="llama-7b",
    layers=32,
    hidden=4096,
    ffn=11008,
    heads=32,
    kv_heads=32,
    head_dim=128,
    vocab=32000,
    extra_params=(2 * 32 + 1) * 4096,
)
GPT_13B = ModelShape(
    name="gpt-13b",
    layers=40,
    hidden=5120,
    ffn=4 * 5120,
    heads=40,
    kv_heads=40,
    head_dim=128,
    vocab=50272,
    gated_mlp=False,
    tied_embeddings=True,
)
EXPERTS = ModelShape(
    name="experts",
    layers=3,
    hidden=8,
    ffn=20,
    heads=4,
    kv_heads=2,
    head_dim=2,
    vocab=10,
    experts=5,
    experts_per_token=2,
    shared_experts=1,
    expert_ffn=6,
    dense_layers=1,
    extra_params=7,
)


def test_parameters_by_hand():
    # queries 8x8, keys and values 8x4 each, output 8x8: 192; gate, up, down of 8x16: 384
    assert TINY.active_layer_params == 192 + 384
    assert TINY.layer_params == 192 + 384
    assert (TINY.embedding_params, TINY.head_params) == (80, 80)
    assert TINY.num_params == 2 * 576 + 160
    assert TINY.num_active_params == TINY.num_params


def test_a_tied_head_counts_once_but_computes():
    tied = replace(TINY, tied_embeddings=True)
    assert tied.head_params == 0
    assert tied.num_params == TINY.num_params - 80
    assert tied.forward_flops(3, 5) == TINY.forward_flops(3, 5)


def test_a_plain_mlp_has_two_matrices():
    assert replace(TINY, gated_mlp=False).active_layer_params == 192 + 256


def test_experts_by_hand():
    attention, dense, expert, router = 192, 3 * 8 * 20, 3 * 8 * 6, 8 * 5
    stored = 3 * attention + dense + 2 * (6 * expert + router)
    assert EXPERTS.num_params == stored + 160 + 7
    assert EXPERTS.num_active_params == EXPERTS.num_params - 2 * 3 * expert
    met = 3 * attention + dense + 2 * (3 * expert + router)
    assert EXPERTS.active_layer_params == pytest.approx(met / 3)
    assert EXPERTS.layer_params == pytest.approx((stored + 7) / 3)
    assert EXPERTS.expert_layers == 2


def test_shared_experts_may_have_a_width_of_their_own():
    wider = replace(EXPERTS, shared_ffn=9)
    assert wider.num_params - EXPERTS.num_params == 2 * 3 * 8 * (9 - 6)


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "kibibytes"),
    # In 16 bits per token: kipp.ly/transformer-inference-arithmetic, and Llama-2-70B, Qwen2.5-7B.
    [(32, 32, 128, 512), (40, 40, 128, 800), (80, 8, 128, 320), (28, 4, 128, 56)],
)
def test_the_cache_of_grouped_queries(layers, kv_heads, head_dim, kibibytes):
    shape = replace(TINY, layers=layers, heads=40 if kv_heads == 40 else 32, kv_heads=kv_heads)
    shape = replace(shape, head_dim=head_dim)
    assert shape.cache_values_per_token * 2 == kibibytes * 1024
    assert shape.cache_heads == kv_heads


def test_a_latent_cache_is_smaller_and_does_not_split():
    latent = replace(TINY, cache_values=3)
    assert latent.cache_values_per_token == 2 * 3
    assert latent.cache_heads == 1


def test_only_attention_layers_have_a_growing_cache():
    hybrid = replace(
        TINY, attention_layers=1, recurrent_layers=1, recurrent_matrices=((8, 30), (10, 8))
    )
    assert hybrid.cache_values_per_token == 8
    assert hybrid.num_params == TINY.num_params - 192 + 8 * 30 + 10 * 8
    # The products of the recurrent layer count, its attention does not.
    assert hybrid.forward_flops(1, 1) - hybrid.forward_flops(1, 0) == 4 * 4 * 2


@pytest.mark.parametrize("length", [256, 2048, 32768])
def test_training_follows_the_published_formula(length):
    """96 B S L h^2 (1 + S/6h + V/16Lh): a recomputed forward pass for all but the head."""
    batch, layers, hidden, vocab = 3, GPT_13B.layers, GPT_13B.hidden, GPT_13B.vocab
    published = 96 * batch * length * layers * hidden**2
    published *= 1 + length / (6 * hidden) + vocab / (16 * layers * hidden)
    body = GPT_13B.forward_flops(batch * length, length, with_head=False)
    head = GPT_13B.forward_flops(batch * length, length) - body
    assert 4 * body + 3 * head == pytest.approx(published, rel=1e-12)


def test_a_forward_pass_follows_the_published_formula_for_generation():
    """24 B S L h^2 (...): its head counts three quarters, since it is the training formula / 4."""
    batch, length, layers, hidden = 2, 512, GPT_13B.layers, GPT_13B.hidden
    base = 24 * batch * length * layers * hidden**2
    tokens = batch * length
    body = GPT_13B.forward_flops(tokens, length, with_head=False)
    assert body == pytest.approx(base * (1 + length / (6 * hidden)), rel=1e-12)
    head = GPT_13B.forward_flops(tokens, length) - body
    published_head = base * GPT_13B.vocab / (16 * layers * hidden)
    assert published_head == pytest.approx(0.75 * head, rel=1e-12)


def test_a_gated_mlp_follows_the_formula_of_real():
    """2 L (4 T h^2 + 2 h sum(s^2) + 3 T h i), and 2 T V h for the head."""
    lengths = [100, 700, 250]
    tokens, squares = sum(lengths), sum(length**2 for length in lengths)
    layers, hidden, ffn = LLAMA_7B.layers, LLAMA_7B.hidden, LLAMA_7B.ffn
    body = 2 * layers * (4 * tokens * hidden**2 + 2 * hidden * squares + 3 * tokens * hidden * ffn)
    assert LLAMA_7B.forward_flops(tokens, squares / tokens, with_head=False) == pytest.approx(body)
    head = 2 * tokens * LLAMA_7B.vocab * hidden
    assert LLAMA_7B.forward_flops(tokens, squares / tokens) == pytest.approx(body + head)


def test_operations_equal_those_of_a_model_counted_product_by_product():
    """A causal pass over 6 tokens of the model with experts, every inner product counted alone."""
    tokens, operations = 6, 0
    for layer in range(EXPERTS.layers):
        for position in range(tokens):
            operations += inner_products(outputs=8, width=8)  # queries
            operations += 2 * inner_products(outputs=4, width=8)  # keys and values
            for _head in range(EXPERTS.heads):
                operations += inner_products(outputs=position + 1, width=2)  # scores
                operations += inner_products(outputs=2, width=position + 1)  # mix of values
            operations += inner_products(outputs=8, width=8)
            if layer < EXPERTS.dense_layers:
                operations += 2 * inner_products(outputs=20, width=8)
                operations += inner_products(outputs=8, width=20)
                continue
            operations += inner_products(outputs=5, width=8)  # router
            for _expert in range(2 + 1):
                operations += 2 * inner_products(outputs=6, width=8)
                operations += inner_products(outputs=8, width=6)
    mean_context = sum(range(1, tokens + 1)) / tokens
    assert EXPERTS.forward_flops(tokens, mean_context, with_head=False) == operations


def inner_products(*, outputs: int, width: int) -> int:
    return sum(2 * width for _ in range(outputs))


@pytest.mark.parametrize(
    ("shape", "rank", "params"),
    # As peft prints them for LLaMA-7B, Llama-3-8B and Mistral-7B with all linear layers.
    [
        (LLAMA_7B, 8, 19_988_480),
        (replace(LLAMA_7B, kv_heads=8, ffn=14336), 8, 20_971_520),
        (replace(LLAMA_7B, kv_heads=8, ffn=14336), 16, 41_943_040),
    ],
)
def test_adapters_on_all_linear_layers(shape, rank, params):
    assert shape.lora_params(rank) == params


def test_routed_experts_and_routers_have_no_adapters():
    attention = 16 + 2 * 12 + 16
    dense, shared = 3 * (8 + 20), 3 * (8 + 6)
    assert EXPERTS.lora_params(4) == 4 * (3 * attention + dense + 2 * shared)


def test_a_narrow_embedding_has_two_projections():
    narrow = replace(TINY, embedding_width=4)
    assert (narrow.embedding_params, narrow.head_params) == (40, 40)
    assert narrow.num_params == 2 * 576 + 2 * 40 + 2 * 4 * 8
    # One projection belongs to the body, one to the head.
    assert narrow.forward_flops(1, 0, with_head=False) == 2 * (2 * 576 + 4 * 8)
    assert narrow.forward_flops(1, 0) == 2 * (2 * 576 + 2 * 4 * 8 + 40)


def test_shapes_are_values():
    assert TINY.num_params > 0  # kept sums are no part of the value
    assert replace(TINY) == copy.deepcopy(TINY) == TINY
    assert len({TINY, replace(TINY), EXPERTS}) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers = 0"),
        ({"vocab": -1}, "vocab = -1"),
        ({"kv_heads": 3}, "4 heads and 3 key-value heads"),
        ({"experts": 4, "experts_per_token": 5, "expert_ffn": 2}, "5 of 4 experts"),
        ({"experts": 4, "expert_ffn": 2}, "4 experts, 0 of them per token"),
        ({"experts": 4, "experts_per_token": 2}, "each 0 wide"),
        ({"attention_layers": 2, "recurrent_layers": 1}, "2 layers, 3 of them with attention"),
        ({"mlp_layers": 3}, "3 with an MLP"),
        ({"dense_layers": 3}, "3 of these dense"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        replace(TINY, **changes)
    assert message in caught.value.wrong
    assert caught.value.right
    assert caught.value.do
