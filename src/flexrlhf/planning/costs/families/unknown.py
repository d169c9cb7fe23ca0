"""Families that are not known here, as far as the usual keys describe them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.costs.families.config_keys import ConfigKeys
from flexrlhf.planning.costs.families.decoder import Traits, decoder
from flexrlhf.planning.costs.families.experts import with_experts, with_latent_attention
from flexrlhf.planning.costs.shape import ModelShape

_LANGUAGE_MODELS: Final = ("CausalLM", "LMHead", "SequenceClassification", "ConditionalGeneration")
"""Parts of the names in `architectures` that speak of a model over tokens."""
_ATTENTION: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_PLAIN_ACTIVATIONS: Final = frozenset({"relu", "gelu", "gelu_new", "gelu_fast", "quick_gelu"})
"""Those of MLPs with two matrices, in the families that are not known here."""
_RECURRENT_KEYS: Final = (
    "hybrid_override_pattern",
    "linear_num_key_heads",
    "mamba_d_state",
    "mamba_num_heads",
    "ssm_cfg",
    "ssm_state_size",
    "state_size",
)


def unknown_family(keys: ConfigKeys, name: str) -> ModelShape:
    """Returns the shape of a family that is taken for one like Llama.

    Its MLP is gated unless its activation speaks against it or its width is not given. Experts and
    latent attention are read from the keys that most families use for them.

    Raises:
        ConfigError: sizes are missing, it is no decoder, or some layers have no attention.
    """
    _refuse_other_kinds(keys)
    keys.require_sizes()
    _refuse_recurrence(keys)
    if "kv_lora_rank" in keys:
        shape = decoder(keys, name, Traits(head_dim=keys.count("v_head_dim")))
        shape = with_latent_attention(shape, keys)
    else:
        bias = keys.flag("attention_bias")
        activation = keys.word("hidden_act") or keys.word("activation_function")
        is_gated = "intermediate_size" in keys and activation not in _PLAIN_ACTIVATIONS
        traits = Traits(gated_mlp=is_gated, query_bias=bias, output_bias=bias)
        shape = decoder(keys, name, traits)
    return _with_experts(shape, keys) if "num_experts" in keys else shape


def _with_experts(shape: ModelShape, keys: ConfigKeys) -> ModelShape:
    expert_ffn = keys.count("moe_intermediate_size", shape.ffn)
    num_dense = min(keys.count("first_k_dense_replace", 0, least=0), shape.layers)
    shape = with_experts(shape, keys, expert_ffn=expert_ffn, dense_layers=num_dense)
    if "shared_expert_intermediate_size" in keys:
        width = keys.count("shared_expert_intermediate_size")
        return replace(shape, shared_experts=1, shared_ffn=width)
    return replace(shape, shared_experts=keys.count("n_shared_experts", 0, least=0))


def _refuse_other_kinds(keys: ConfigKeys) -> None:
    kinds = keys.words("architectures")
    is_foreign = bool(kinds) and not any(
        known in kind for kind in kinds for known in _LANGUAGE_MODELS
    )
    if is_foreign or keys.flag("is_encoder_decoder"):
        told = ", ".join(kinds) or keys.word("model_type")
        raise ConfigError(
            f"{keys.where} is that of {told}, no causal language model.",
            "RLHF trains models that predict the next token, like LlamaForCausalLM.",
            "Give the config.json of such a model.",
        )


def _refuse_recurrence(keys: ConfigKeys) -> None:
    """Layers without attention have other matrices, and a state instead of a cache."""
    signs = [key for key in _RECURRENT_KEYS if key in keys]
    signs += sorted(set(keys.words("layer_types")) - _ATTENTION)
    if signs:
        raise ConfigError(
            f"{keys.where} is of the family {keys.word('model_type')!r}, some of whose layers are "
            f"no attention ({signs[0]}); they are not known here.",
            "Every layer has attention, or the family is qwen3_5, qwen3_next or nemotron_h.",
            "Plan with the shape of a model of that size.",
        )
