"""Which reader belongs to a config's `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from flexrlhf.planning.costs.families import dense, experts, recurrent
from flexrlhf.planning.costs.families.config_keys import ConfigKeys
from flexrlhf.planning.costs.shape import ModelShape

FAMILIES: Final[Mapping[str, Callable[[ConfigKeys, str], ModelShape]]] = {
    "llama": dense.llama,
    "mistral": dense.llama,
    "gemma": dense.llama,
    "smollm3": dense.llama,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
    "gemma2": dense.gemma2,
    "gemma3_text": dense.gemma3,
    "phi": dense.phi,
    "phi3": dense.phi3,
    "olmo2": dense.olmo2,
    "starcoder2": dense.starcoder2,
    "gpt2": dense.gpt2,
    "gpt_neox": dense.gpt_neox,
    "gptj": dense.gptj,
    "opt": dense.opt,
    "falcon": dense.falcon,
    "mixtral": experts.mixtral,
    "qwen2_moe": experts.qwen2_moe,
    "qwen3_moe": experts.qwen3_moe,
    "deepseek_v2": experts.deepseek,
    "deepseek_v3": experts.deepseek,
    "qwen3_next": recurrent.qwen3_next,
    "qwen3_5_text": recurrent.qwen3_5,
    "qwen3_5_moe_text": recurrent.qwen3_5_moe,
    "nemotron_h": recurrent.nemotron_h,
}
