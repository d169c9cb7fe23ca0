"""What a family of transformers assumes for a key that its config leaves out.

Source: the configuration files of transformers 5.19, which a parity test compares. Spelt as
`ConfigKeys` spells them. A key that is in neither table has no default, or one that means "work it
out": as many key-value heads as heads, heads as wide as the hidden state divided by their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_TIED: Final = {"tie_word_embeddings": True}
_DELTA_NET: Final = {
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}

DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8},
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
    "gemma": {"num_key_value_heads": 16, "head_dim": 256, **_TIED},
    "gemma2": {"num_key_value_heads": 4, "head_dim": 256, **_TIED},
    "gemma3_text": {"num_key_value_heads": 4, "head_dim": 256, **_TIED},
    "phi": {},
    "phi3": {},
    "olmo2": {},
    "smollm3": {"num_key_value_heads": 4, **_TIED},
    "starcoder2": {"num_key_value_heads": 2, "use_bias": True, **_TIED},
    "gpt2": {"max_position_embeddings": 1024, **_TIED},
    "gpt_neox": {"attention_bias": True},
    "gptj": {},
    "opt": {
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        **_TIED,
    },
    "falcon": {"multi_query": True, "parallel_attn": True, **_TIED},
    "mixtral": {"num_key_value_heads": 8, "num_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "decoder_sparse_step": 1,
        "num_key_value_heads": 16,
        "qkv_bias": True,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    "qwen3_moe": {
        "decoder_sparse_step": 1,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "deepseek_v2": {
        "num_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "first_k_dense_replace": 0,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    },
    "deepseek_v3": {
        "num_key_value_heads": 128,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    },
    "qwen3_next": {
        "decoder_sparse_step": 1,
        "num_key_value_heads": 2,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        **_DELTA_NET,
    },
    "qwen3_5_text": {"num_key_value_heads": 4, **_DELTA_NET},
    "qwen3_5_moe_text": {
        "num_key_value_heads": 2,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        **_DELTA_NET,
    },
    "nemotron_h": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "shared_expert_intermediate_size": 7688,
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "conv_kernel": 4,
    },
}
"""For keys that a whole config.json may lack."""

_SIZE_NAMES: Final = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
_SIZE_VALUES: Final[Mapping[str, tuple[int | None, ...]]] = {
    "llama": (32000, 4096, 11008, 32, 32),
    "mistral": (32000, 4096, 14336, 32, 32),
    "qwen2": (151936, 4096, 22016, 32, 32),
    "qwen3": (151936, 4096, 22016, 32, 32),
    "gemma": (256000, 3072, 24576, 28, 16),
    "gemma2": (256000, 2304, 9216, 26, 8),
    "gemma3_text": (262208, 2304, 9216, 26, 8),
    "phi": (51200, 2048, 8192, 24, 32),
    "phi3": (32064, 3072, 8192, 32, 32),
    "olmo2": (50304, 4096, 11008, 32, 32),
    "smollm3": (128256, 2048, 11008, 36, 16),
    "starcoder2": (49152, 3072, 12288, 30, 24),
    "gpt2": (50257, 768, None, 12, 12),
    "gpt_neox": (50432, 6144, 24576, 44, 64),
    "gptj": (50400, 4096, None, 28, 16),
    "opt": (50272, 768, 3072, 12, 12),
    "falcon": (65024, 4544, None, 32, 71),
    "mixtral": (32000, 4096, 14336, 32, 32),
    "qwen2_moe": (151936, 2048, 5632, 24, 16),
    "qwen3_moe": (151936, 2048, 6144, 24, 32),
    "deepseek_v2": (102400, 4096, 11008, 32, 32),
    "deepseek_v3": (129280, 7168, 18432, 61, 128),
    "qwen3_next": (151936, 2048, 5632, 48, 16),
    "qwen3_5_text": (248320, 4096, 12288, 32, 16),
    "qwen3_5_moe_text": (248320, 2048, None, 40, 16),
    "nemotron_h": (131072, 4096, 21504, None, 32),
}
SIZES: Final[Mapping[str, Mapping[str, Any]]] = {
    family: {
        key: value for key, value in zip(_SIZE_NAMES, values, strict=True) if value is not None
    }
    for family, values in _SIZE_VALUES.items()
}
"""For keys that a config.json has, but that a user who writes an architecture may leave out."""
