"""What the planner believes about a model is what transformers builds, to the last parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from flexrlhf.planning.costs.families.defaults import DEFAULTS
from flexrlhf.planning.costs.families.registry import FAMILIES
from flexrlhf.planning.costs.gguf_shape import shape_of_gguf
from flexrlhf.planning.costs.hugging_face_config import shape_of_architecture, shape_of_config
from flexrlhf.planning.costs.shape_catalogue import SHAPES

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
OLD_NAMES = {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40}
HEAD = {"head_dim": 16}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 12}
LATENT = {
    "kv_lora_rank": 6,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    **EXPERTS,
}
DELTA_NET = {
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    **HEAD,
}
SHARED = {"num_experts": 8, "shared_expert_intermediate_size": 20, **EXPERTS}
MAMBA = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 6, "n_groups": 2, **HEAD}
BIASES = {"attention_bias": True}
TIED = {"tie_word_embeddings": True}

VARIANTS = {
    "llama": ("llama", SIZES),
    "llama-tied": ("llama", SIZES | TIED),
    "llama-biases": ("llama", SIZES | BIASES | {"mlp_bias": True}),
    "llama-all-heads": ("llama", {**SIZES, "num_key_value_heads": None}),
    "mistral": ("mistral", SIZES | HEAD),
    "qwen2": ("qwen2", SIZES | TIED),
    "qwen3": ("qwen3", SIZES),
    "qwen3-biases": ("qwen3", SIZES | HEAD | BIASES),
    "gemma": ("gemma", SIZES | HEAD),
    "gemma2": ("gemma2", SIZES | HEAD | BIASES),
    "gemma3": ("gemma3_text", SIZES | HEAD | {"tie_word_embeddings": False}),
    "smollm3": ("smollm3", SIZES | {"pad_token_id": 0}),
    "olmo2": ("olmo2", SIZES),
    "phi": ("phi", SIZES),
    "phi3": ("phi3", SIZES | {"pad_token_id": 0}),
    "starcoder2": ("starcoder2", SIZES),
    "starcoder2-no-biases": ("starcoder2", SIZES | {"use_bias": False}),
    "gpt2": ("gpt2", OLD_NAMES),
    "gpt2-narrow": ("gpt2", OLD_NAMES | {"n_inner": 20, "tie_word_embeddings": False}),
    "gptj": ("gptj", OLD_NAMES | {"rotary_dim": 4}),
    "gpt-neox": ("gpt_neox", SIZES),
    "opt": ("opt", SIZES | {"ffn_dim": 40}),
    "opt-narrow-embedding": (
        "opt",
        SIZES | {"ffn_dim": 40, "word_embed_proj_dim": 12, "do_layer_norm_before": False},
    ),
    "opt-no-biases": (
        "opt",
        SIZES | {"ffn_dim": 40, "enable_bias": False, "layer_norm_elementwise_affine": False},
    ),
    "falcon": ("falcon", SIZES),
    "falcon-groups": ("falcon", SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-one-norm": (
        "falcon",
        SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-in-turn": (
        "falcon",
        SIZES | {"parallel_attn": False, "multi_query": False, "bias": True},
    ),
    "mixtral": ("mixtral", SIZES | {"num_local_experts": 4}),
    "qwen2-moe": ("qwen2_moe", SIZES | SHARED | {"decoder_sparse_step": 2}),
    "qwen3-moe": (
        "qwen3_moe",
        SIZES | EXPERTS | {"num_experts": 8, "mlp_only_layers": [0, 3], **HEAD},
    ),
    "deepseek-v2": ("deepseek_v2", SIZES | LATENT | {"q_lora_rank": None}),
    "deepseek-v3": ("deepseek_v3", SIZES | LATENT | {"q_lora_rank": 14}),
    "deepseek-v3-biases": ("deepseek_v3", SIZES | LATENT | BIASES | {"first_k_dense_replace": 1}),
    "qwen3-next": ("qwen3_next", SIZES | SHARED | DELTA_NET | {"mlp_only_layers": [1]}),
    "qwen3.5": ("qwen3_5_text", SIZES | DELTA_NET),
    "qwen3.5-moe": ("qwen3_5_moe_text", SIZES | SHARED | DELTA_NET),
    "nemotron": (
        "nemotron_h",
        SIZES
        | MAMBA
        | EXPERTS
        | {
            "n_routed_experts": 8,
            "moe_shared_expert_intermediate_size": 20,
            "hybrid_override_pattern": "MEM*-E",
        },
    ),
}
"""Options by variant; keys that a family does not have are left out before it is built."""

NEMOTRON_3_NANO = {
    "hidden_size": 2688,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "vocab_size": 131072,
    "hybrid_override_pattern": "M" * 23 + "E" * 23 + "*" * 6,
    "mamba_num_heads": 64,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
}
FULL_SIZE = {
    "gpt2": ("gpt2", {}),
    "gpt-j-6b": ("gptj", {}),
    "mistral-7b": ("mistral", {}),
    "mixtral-8x7b": ("mixtral", {}),
    "deepseek-v3": ("deepseek_v3", {}),
    "qwen3.5-35b-a3b": ("qwen3_5_moe_text", {}),
    "nemotron3-nano-30b-a3b": ("nemotron_h", NEMOTRON_3_NANO),
    "opt-350m": (
        "opt",
        {
            "hidden_size": 1024,
            "ffn_dim": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
    ),
    "qwen3-30b-a3b": ("qwen3_moe", {"num_hidden_layers": 48, "head_dim": 128}),
}
"""Models of the catalogue that its ordinary columns do not describe."""


UNLISTED = {"head_dim": "qwen3_moe", "hybrid_override_pattern": "nemotron_h"}
"""Keys that a family reads without listing them."""
Options = Mapping[str, Any]


def known_options(family: str, options: Options) -> Options:
    """The options that the family has."""
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[family]
    known = {*config_class().to_dict(), *config_class.attribute_map}
    unlisted = {key for key, reader in UNLISTED.items() if reader == family}
    return {key: value for key, value in options.items() if key in known | unlisted}


def build(
    family: str, options: Options, device: str = "meta", **more: Any
) -> tuple[Any, torch.nn.Module]:
    """The config and the model, which on the device `meta` has sizes but no numbers."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[family](**known_options(family, options))
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, **more)
    model.tie_weights()
    return config, model


def num_params(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_family_is_tried():
    assert {family for family, _ in VARIANTS.values()} == set(FAMILIES) == set(DEFAULTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_of_a_config_are_those_of_the_model(name):
    family, options = VARIANTS[name]
    config, model = build(family, options)
    saved = json.loads(config.to_json_string(use_diff=True))
    assert shape_of_config(saved, name).num_params == num_params(model)


@pytest.mark.parametrize("name", VARIANTS)
def test_an_architecture_means_the_model_that_it_makes(name):
    family, options = VARIANTS[name]
    config, _ = build(family, options)
    given = {"model_type": family, **known_options(family, options)}
    assert shape_of_architecture(given, name) == shape_of_config(config.to_dict(), name)


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_those_of_the_family(family):
    from transformers import CONFIG_MAPPING

    must = {"num_experts_per_tok": 6} if family == "deepseek_v2" else {}
    document = CONFIG_MAPPING[family](**must).to_dict()
    assert shape_of_architecture({"model_type": family, **must}, "x") == shape_of_config(
        document, "x"
    )


@pytest.mark.parametrize("name", FULL_SIZE)
def test_the_catalogue_describes_the_models_that_are_unusual(name):
    family, options = FULL_SIZE[name]
    _, model = build(family, options)
    assert SHAPES[name].num_params == num_params(model)


@pytest.mark.parametrize(
    "name",
    ["llama", "qwen3", "gemma2", "gpt2", "gptj", "opt", "falcon", "mixtral", "deepseek-v3"],
)
def test_operations_are_those_that_torch_counts(name):
    """Eager attention computes all pairs, so every token attends to the whole sequence."""
    family, options = VARIANTS[name]
    config, model = build(
        family, options, device="cpu", attn_implementation="eager", experts_implementation="eager"
    )
    batch, length = 2, 24
    tokens_BT = torch.zeros(batch, length, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(tokens_BT, use_cache=False)
    expected = shape_of_config(config.to_dict(), name).forward_flops(batch * length, length)
    # Rotary angles are products too, once per pass.
    assert counter.get_total_flops() == pytest.approx(expected, rel=2e-3)
    assert counter.get_total_flops() >= expected


@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "gpt2", "qwen3-moe", "deepseek-v3", "qwen3-next", "qwen3.5-moe"]
)
def test_adapters_go_to_the_linear_layers(name):
    """As peft chooses them for `all-linear`, but for the one number that gates shared experts."""
    from transformers.pytorch_utils import Conv1D

    family, options = VARIANTS[name]
    config, model = build(family, options)
    widths = [
        sum(module.weight.shape)
        for path, module in model.base_model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D)) and not path.endswith("expert_gate")
    ]
    assert shape_of_config(config.to_dict(), name).lora_params(3) == 3 * sum(widths)


def test_a_gguf_file_of_the_official_writer_says_the_same_shape(tmp_path):
    file = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_token_list([f"token {index}" for index in range(3000)])
    writer.add_token_scores([0.5] * 3000)
    table_VD = np.zeros((SIZES["vocab_size"], SIZES["hidden_size"]), dtype=np.float32)
    writer.add_tensor("token_embd.weight", table_VD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tied = {"model_type": "qwen2", **SIZES, "tie_word_embeddings": True}
    assert shape_of_gguf(file) == shape_of_architecture(tied, "tiny")
