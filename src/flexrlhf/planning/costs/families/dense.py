"""Families whose layers are all alike: attention and a dense MLP.

Source: the modelling files of transformers 5.19; a parity test builds each of them and counts.
"""

from __future__ import annotations

from dataclasses import replace

from flexrlhf.planning.costs.families.config_keys import ConfigKeys
from flexrlhf.planning.costs.families.decoder import Traits, decoder
from flexrlhf.planning.costs.shape import ModelShape

_OPT_POSITION_OFFSET = 2
"""OPT's table of positions starts two rows late."""


def llama(keys: ConfigKeys, name: str) -> ModelShape:
    """Llama, and what is built like it: mistral, gemma, smollm3."""
    bias = keys.flag("attention_bias")
    traits = Traits(query_bias=bias, output_bias=bias, mlp_bias=keys.flag("mlp_bias"))
    return decoder(keys, name, traits)


def phi3(keys: ConfigKeys, name: str) -> ModelShape:
    """Like llama, with one matrix for queries, keys and values."""
    return decoder(keys, name, Traits(fused_queries=True))


def qwen2(keys: ConfigKeys, name: str) -> ModelShape:
    """Like llama, with biases of queries, keys and values."""
    return decoder(keys, name, Traits(query_bias=True))


def qwen3(keys: ConfigKeys, name: str) -> ModelShape:
    """Like llama, with norms of queries and keys."""
    bias = keys.flag("attention_bias")
    return decoder(keys, name, Traits(query_bias=bias, output_bias=bias, query_norms="per_head"))


def olmo2(keys: ConfigKeys, name: str) -> ModelShape:
    """Like llama, with norms over all queries and all keys."""
    bias = keys.flag("attention_bias")
    return decoder(keys, name, Traits(query_bias=bias, output_bias=bias, query_norms="whole"))


def gemma2(keys: ConfigKeys, name: str) -> ModelShape:
    """Norms before and after attention and MLP."""
    bias = keys.flag("attention_bias")
    return decoder(keys, name, Traits(query_bias=bias, output_bias=bias, norms=4))


def gemma3(keys: ConfigKeys, name: str) -> ModelShape:
    """Like gemma2, with norms of queries and keys."""
    bias = keys.flag("attention_bias")
    traits = Traits(query_bias=bias, output_bias=bias, norms=4, query_norms="per_head")
    return decoder(keys, name, traits)


def gpt2(keys: ConfigKeys, name: str) -> ModelShape:
    """Learned positions, biases everywhere, one matrix for queries, keys and values."""
    traits = Traits(
        gated_mlp=False,
        query_bias=True,
        output_bias=True,
        mlp_bias=True,
        biased_norms=True,
        fused_queries=True,
        learned_positions=keys.count("max_position_embeddings"),
    )
    return decoder(keys, name, traits)


def gpt_neox(keys: ConfigKeys, name: str) -> ModelShape:
    """Like gpt2 with rotary positions: Pythia."""
    bias = keys.flag("attention_bias")
    traits = Traits(
        gated_mlp=False,
        query_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        biased_norms=True,
        fused_queries=True,
    )
    return decoder(keys, name, traits)


def gptj(keys: ConfigKeys, name: str) -> ModelShape:
    """Attention and MLP in parallel behind one norm; the head has a bias."""
    traits = Traits(gated_mlp=False, mlp_bias=True, head_bias=True, norms=1, biased_norms=True)
    return decoder(keys, name, traits)


def phi(keys: ConfigKeys, name: str) -> ModelShape:
    """Like gptj, with biases in attention as well: phi-1, phi-2."""
    traits = Traits(
        gated_mlp=False,
        query_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
        norms=1,
        biased_norms=True,
    )
    return decoder(keys, name, traits)


def starcoder2(keys: ConfigKeys, name: str) -> ModelShape:
    """A plain MLP and LayerNorm, otherwise like llama."""
    bias = keys.flag("use_bias")
    traits = Traits(
        gated_mlp=False, query_bias=bias, output_bias=bias, mlp_bias=bias, biased_norms=True
    )
    return decoder(keys, name, traits)


def opt(keys: ConfigKeys, name: str) -> ModelShape:
    """Learned positions, and in its 350m an embedding narrower than the layers."""
    bias, has_norm_weights = keys.flag("enable_bias"), keys.flag("layer_norm_elementwise_affine")
    ends_in_norm = keys.flag("do_layer_norm_before") and not keys.flag("_remove_final_layer_norm")
    traits = Traits(
        gated_mlp=False,
        query_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        norms=2 if has_norm_weights else 0,
        biased_norms=True,
        final_norm=ends_in_norm and has_norm_weights,
        learned_positions=keys.count("max_position_embeddings") + _OPT_POSITION_OFFSET,
    )
    shape = decoder(keys, name, traits)
    width = keys.count("word_embed_proj_dim", shape.hidden)
    return shape if width == shape.hidden else replace(shape, embedding_width=width)


def falcon(keys: ConfigKeys, name: str) -> ModelShape:
    """One key-value head (7b), or groups (40b, 180b); mostly attention and MLP in parallel."""
    is_new = keys.flag("new_decoder_architecture")
    is_parallel, bias = keys.flag("parallel_attn"), keys.flag("bias")
    parallel_norms = keys.count("num_ln_in_parallel_attn", 2 if is_new else 1)
    has_two_norms = not is_parallel or parallel_norms == 2
    traits = Traits(
        gated_mlp=False,
        query_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        norms=2 if has_two_norms else 1,
        biased_norms=True,
        fused_queries=True,
        kv_heads=_falcon_kv_heads(keys, is_new=is_new),
    )
    return decoder(keys, name, traits)


def _falcon_kv_heads(keys: ConfigKeys, *, is_new: bool) -> int | None:
    if is_new:
        return None
    return 1 if keys.flag("multi_query") else keys.count("num_attention_heads")
