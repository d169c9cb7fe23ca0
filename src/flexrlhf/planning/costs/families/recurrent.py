"""Families in which most layers carry a constant state instead of a growing cache.

Source: the modelling files of transformers 5.19; a parity test builds each of them and counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.costs.families.config_keys import ConfigKeys
from flexrlhf.planning.costs.families.decoder import Traits, decoder
from flexrlhf.planning.costs.families.experts import (
    dense_layers,
    with_experts,
    with_gated_shared_expert,
)
from flexrlhf.planning.costs.shape import Matrix, ModelShape

_LETTERS: Final = {
    "M": "M",
    "mamba": "M",
    "linear_attention": "M",
    "*": "*",
    "attention": "*",
    "full_attention": "*",
    "E": "E",
    "moe": "E",
    "-": "-",
    "mlp": "-",
}
"""Nemotron-H's letters for its blocks, and the words that newer files use for them."""
_DEFAULT_BLOCKS: Final = "ME*-"


def qwen3_5(keys: ConfigKeys, name: str) -> ModelShape:
    """Gated delta-net in most layers, attention with gated output in the others."""
    return _with_delta_net(_gated_decoder(keys, name), keys)


def qwen3_5_moe(keys: ConfigKeys, name: str) -> ModelShape:
    """The same with experts in every layer."""
    shape = _with_delta_net(_gated_decoder(keys, name, has_dense_mlp=False), keys)
    return with_gated_shared_expert(with_experts(shape, keys), keys)


def qwen3_next(keys: ConfigKeys, name: str) -> ModelShape:
    """The same, with the dense MLP in layers that the config names."""
    shape = _with_delta_net(_gated_decoder(keys, name), keys, fused=True)
    shape = with_experts(shape, keys, dense_layers=dense_layers(keys))
    return with_gated_shared_expert(shape, keys)


def nemotron_h(keys: ConfigKeys, name: str) -> ModelShape:
    """Blocks of one part each: Mamba-2, attention, experts, or a dense MLP; all MLPs are plain.

    Raises:
        ConfigError: a block is unknown, or experts work on a narrower state than the others.
    """
    blocks = tuple(_blocks(keys))
    keys = keys.with_values({"num_hidden_layers": len(blocks)})
    if "moe_latent_size" in keys:
        raise ConfigError(
            f"{keys.where} has moe_latent_size: its experts are narrower than its layers.",
            "Experts are as wide as the hidden state.",
            "Give the shape of a model of that size.",
        )
    num_dense, num_sparse = blocks.count("-"), blocks.count("E")
    traits = Traits(
        gated_mlp=False,
        has_dense_mlp=num_dense > 0,
        norms=1,
        attention_layers=blocks.count("*"),
    )
    shape = _with_mamba2(decoder(keys, name, traits), keys, blocks.count("M"))
    shape = replace(shape, mlp_layers=num_dense + num_sparse)
    if not num_sparse:
        return shape
    shape = with_experts(shape, keys, dense_layers=num_dense)
    shared_ffn = keys.count("shared_expert_intermediate_size")
    return replace(shape, shared_experts=1, shared_ffn=shared_ffn)


def _gated_decoder(keys: ConfigKeys, name: str, *, has_dense_mlp: bool = True) -> ModelShape:
    bias = keys.flag("attention_bias")
    traits = Traits(
        has_dense_mlp=has_dense_mlp,
        query_bias=bias,
        output_bias=bias,
        query_norms="per_head",
        gated_queries=True,
        attention_layers=_full_attention_layers(keys),
    )
    return decoder(keys, name, traits)


def _full_attention_layers(keys: ConfigKeys) -> int:
    layers = keys.count("num_hidden_layers") if "num_hidden_layers" in keys else 0
    kinds = keys.words("layer_types")
    if kinds:
        return sum(kind == "full_attention" for kind in kinds)
    return layers // keys.count("full_attention_interval", 4)


def _with_delta_net(shape: ModelShape, keys: ConfigKeys, *, fused: bool = False) -> ModelShape:
    """Source: Gated Delta Networks, arXiv 2412.06464, as Qwen uses them."""
    hidden, value_heads = shape.hidden, keys.count("linear_num_value_heads")
    key_dim, value_dim = keys.count("linear_key_head_dim"), keys.count("linear_value_head_dim")
    value_width = value_heads * value_dim
    convolved = 2 * keys.count("linear_num_key_heads") * key_dim + value_width
    if fused:
        inward: tuple[Matrix, ...] = ((hidden, convolved + value_width), (hidden, 2 * value_heads))
    else:
        gates = ((hidden, value_heads), (hidden, value_heads))
        inward = ((hidden, convolved), (hidden, value_width), *gates)
    kernel = keys.count("linear_conv_kernel_dim")
    small = convolved * kernel + 2 * value_heads + value_dim
    layers = shape.layers - (shape.attention_layers or 0)
    return replace(
        shape,
        recurrent_layers=layers,
        recurrent_matrices=(*inward, (value_width, hidden)),
        state_values=layers * (value_heads * key_dim * value_dim + convolved * kernel),
        extra_params=shape.extra_params + layers * small,
    )


def _with_mamba2(shape: ModelShape, keys: ConfigKeys, layers: int) -> ModelShape:
    """Source: Mamba-2, arXiv 2405.21060, section 7.1."""
    heads, state = keys.count("mamba_num_heads"), keys.count("ssm_state_size")
    inner = heads * keys.count("mamba_head_dim")
    convolved = inner + 2 * keys.count("n_groups") * state
    kernel = keys.count("conv_kernel")
    projected = inner + convolved + heads
    small = convolved * (kernel + keys.flag("use_conv_bias", default=True)) + 3 * heads + inner
    small += projected + shape.hidden if keys.flag("use_bias") else 0
    return replace(
        shape,
        recurrent_layers=layers,
        recurrent_matrices=((shape.hidden, projected), (inner, shape.hidden)),
        state_values=layers * (inner * state + convolved * kernel),
        extra_params=shape.extra_params + layers * small,
    )


def _blocks(keys: ConfigKeys) -> Iterator[str]:
    words = keys.words("hybrid_override_pattern") or keys.words("layer_types") or _DEFAULT_BLOCKS
    for word in words:
        if word not in _LETTERS:
            raise ConfigError(
                f"{keys.where} has a block {word!r}.",
                f"Blocks are {', '.join(_LETTERS)}.",
                "Correct the pattern.",
            )
        yield _LETTERS[word]
