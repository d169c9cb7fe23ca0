"""What all decoders share: sizes, attention, dense MLP, norms and biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.costs.families.config_keys import ConfigKeys
from flexrlhf.planning.costs.shape import Matrix, ModelShape


@dataclass(frozen=True, slots=True)
class Traits:
    """How a family's layers are made, beyond the sizes in its config."""

    gated_mlp: bool = True
    has_dense_mlp: bool = True
    query_bias: bool = False
    """Of queries, keys and values."""
    output_bias: bool = False
    """Of attention's output."""
    mlp_bias: bool = False
    head_bias: bool = False
    norms: int = 2
    """As wide as the hidden state, per layer."""
    biased_norms: bool = False
    """Norms have a bias beside their weight: LayerNorm, not RMSNorm."""
    final_norm: bool = True
    query_norms: Literal["none", "per_head", "whole"] = "none"
    """Norms of queries and keys: one head wide each, or as wide as all heads."""
    fused_queries: bool = False
    """One matrix for queries, keys and values, which LoRA gives one adapter."""
    gated_queries: bool = False
    """The query matrix gives a gate for attention's output as well."""
    learned_positions: int = 0
    kv_heads: int | None = None
    """None: as the config says."""
    head_dim: int | None = None
    """None: as the config says."""
    attention_layers: int | None = None
    """None: all."""


def decoder(keys: ConfigKeys, name: str, traits: Traits) -> ModelShape:
    """Returns the shape of a dense decoder with attention in each layer, or as `traits` say.

    Raises:
        ConfigError: a key is missing or has a value that cannot be.
    """
    keys.require_sizes()
    hidden, heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    kv_heads = traits.kv_heads or keys.count("num_key_value_heads", heads)
    head_dim = traits.head_dim or _head_dim(keys, hidden, heads)
    layers = keys.count("num_hidden_layers")
    ffn = _ffn(keys, hidden, traits)
    query_width, key_width = heads * head_dim, kv_heads * head_dim
    per_layer = _norm_params(traits.norms, hidden, traits)
    per_layer += (hidden + ffn * (2 if traits.gated_mlp else 1)) if traits.mlp_bias else 0
    outside = _norm_params(1, hidden, traits) if traits.final_norm else 0
    outside += keys.count("vocab_size") if traits.head_bias else 0
    outside += traits.learned_positions * hidden
    attention_layers = layers if traits.attention_layers is None else traits.attention_layers
    attention = _small_attention_params(hidden, query_width, key_width, head_dim, traits)
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=keys.count("vocab_size"),
        tied_embeddings=keys.flag("tie_word_embeddings"),
        gated_mlp=traits.gated_mlp,
        attention_layers=traits.attention_layers,
        attention_matrices=_attention_matrices(hidden, query_width, key_width, traits),
        extra_params=layers * per_layer + attention_layers * attention + outside,
    )


def _head_dim(keys: ConfigKeys, hidden: int, heads: int) -> int:
    if "head_dim" in keys:
        return keys.count("head_dim")
    if hidden < heads:
        raise ConfigError(
            f"{keys.where} has hidden_size = {hidden} and num_attention_heads = {heads}.",
            "A head is at least 1 wide.",
            "Correct the values.",
        )
    return hidden // heads


def _ffn(keys: ConfigKeys, hidden: int, traits: Traits) -> int:
    """Plain MLPs are four times as wide as the hidden state unless the config says otherwise."""
    if not traits.has_dense_mlp:
        return 0
    return keys.count("intermediate_size", None if traits.gated_mlp else 4 * hidden)


def _norm_params(norms: int, width: int, traits: Traits) -> int:
    return norms * width * (2 if traits.biased_norms else 1)


def _small_attention_params(
    hidden: int, query_width: int, key_width: int, head_dim: int, traits: Traits
) -> int:
    """Biases and norms inside one attention layer."""
    queries = query_width * (2 if traits.gated_queries else 1)
    params = queries + 2 * key_width if traits.query_bias else 0
    params += hidden if traits.output_bias else 0
    normed = {"none": 0, "per_head": 2 * head_dim, "whole": query_width + key_width}
    return params + normed[traits.query_norms]


def _attention_matrices(
    hidden: int, query_width: int, key_width: int, traits: Traits
) -> tuple[Matrix, ...]:
    if traits.fused_queries:
        return ((hidden, query_width + 2 * key_width), (query_width, hidden))
    if traits.gated_queries:
        keys = ((hidden, key_width), (hidden, key_width))
        return ((hidden, 2 * query_width), *keys, (query_width, hidden))
    return ()
