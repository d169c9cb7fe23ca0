"""Families with a mixture of experts, and the latent attention of DeepSeek.

Source: the modelling files of transformers 5.19; a parity test builds each of them and counts.
Layers that predict further tokens (MTP) are left out: transformers does not train them.
"""

from __future__ import annotations

from dataclasses import replace

from flexrlhf.planning.costs.families.config_keys import ConfigKeys
from flexrlhf.planning.costs.families.decoder import Traits, decoder
from flexrlhf.planning.costs.shape import Matrix, ModelShape


def mixtral(keys: ConfigKeys, name: str) -> ModelShape:
    """Like llama; every MLP is made of experts as wide as the config's MLP."""
    shape = decoder(keys, name, Traits())
    return with_experts(shape, keys, expert_ffn=keys.count("intermediate_size"))


def qwen2_moe(keys: ConfigKeys, name: str) -> ModelShape:
    """Like qwen2, with one gated shared expert."""
    shape = decoder(keys, name, Traits(query_bias=keys.flag("qkv_bias")))
    shape = with_experts(shape, keys, dense_layers=dense_layers(keys))
    return with_gated_shared_expert(shape, keys)


def qwen3_moe(keys: ConfigKeys, name: str) -> ModelShape:
    """Like qwen3, without shared experts."""
    bias = keys.flag("attention_bias")
    traits = Traits(query_bias=bias, output_bias=bias, query_norms="per_head")
    return with_experts(decoder(keys, name, traits), keys, dense_layers=dense_layers(keys))


def deepseek(keys: ConfigKeys, name: str) -> ModelShape:
    """Latent attention, dense layers first, shared experts: DeepSeek-V2 and V3."""
    shape = decoder(keys, name, Traits(head_dim=keys.count("v_head_dim")))
    shape = with_latent_attention(shape, keys)
    num_shared = keys.count("n_shared_experts", 0, least=0)
    num_dense = min(keys.count("first_k_dense_replace", 0, least=0), shape.layers)
    return replace(with_experts(shape, keys, dense_layers=num_dense), shared_experts=num_shared)


def with_experts(
    shape: ModelShape, keys: ConfigKeys, *, expert_ffn: int | None = None, dense_layers: int = 0
) -> ModelShape:
    """Returns the shape with its MLPs, but for `dense_layers`, replaced by experts."""
    return replace(
        shape,
        experts=keys.count("num_experts"),
        experts_per_token=keys.count("num_experts_per_tok"),
        expert_ffn=expert_ffn or keys.count("moe_intermediate_size"),
        dense_layers=dense_layers,
    )


def with_gated_shared_expert(shape: ModelShape, keys: ConfigKeys) -> ModelShape:
    """Returns the shape with one shared expert per layer of experts, and the gate before it."""
    return replace(
        shape,
        shared_experts=1,
        shared_ffn=keys.count("shared_expert_intermediate_size"),
        extra_params=shape.extra_params + shape.expert_layers * shape.hidden,
    )


def dense_layers(keys: ConfigKeys) -> int:
    """Returns how many layers keep the dense MLP, by Qwen's two keys for that."""
    named, step = set(keys.indices("mlp_only_layers")), keys.count("decoder_sparse_step", 1)
    layers = range(keys.count("num_hidden_layers"))
    return sum(layer in named or (layer + 1) % step != 0 for layer in layers)


def with_latent_attention(shape: ModelShape, keys: ConfigKeys) -> ModelShape:
    """Returns the shape with keys and values made from one small vector per token, which is cached.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """
    hidden, heads = shape.hidden, shape.heads
    latent, rotary = keys.count("kv_lora_rank"), keys.count("qk_rope_head_dim")
    plain, value = keys.count("qk_nope_head_dim"), keys.count("v_head_dim")
    query = heads * (plain + rotary)
    rank = keys.count("q_lora_rank") if "q_lora_rank" in keys else 0
    queries: tuple[Matrix, ...] = ((hidden, rank), (rank, query)) if rank else ((hidden, query),)
    biases = rank + latent + rotary + hidden if keys.flag("attention_bias") else 0
    return replace(
        shape,
        attention_matrices=(
            *queries,
            (hidden, latent + rotary),
            (latent, heads * (plain + value)),
            (heads * value, hidden),
        ),
        attention_width=query + heads * value,
        cache_values=latent + rotary,
        extra_params=shape.extra_params + shape.layers * (rank + latent + biases),
    )
