from __future__ import annotations

import json

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.costs.hugging_face_config import (
    shape_of_architecture,
    shape_of_config,
    shape_of_config_file,
)

LLAMA = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def sizes(family, vocabulary, hidden, layers, heads, kv_heads, ffn, **more):
    return {
        "model_type": family,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        **more,
    }


# What the hub shows for each model's weights.
PUBLISHED = {
    "llama-3.2-1b": (
        1_235_814_400,
        sizes("llama", 128256, 2048, 16, 32, 8, 8192, tie_word_embeddings=True),
    ),
    "smollm2-135m": (
        134_515_008,
        sizes("llama", 49152, 576, 30, 9, 3, 1536, tie_word_embeddings=True),
    ),
    "smollm3-3b": (3_075_098_624, sizes("smollm3", 128256, 2048, 36, 16, 4, 11008)),
    "qwen2.5-1.5b": (
        1_543_714_304,
        sizes("qwen2", 151936, 1536, 28, 12, 2, 8960, tie_word_embeddings=True),
    ),
    "qwen3-0.6b": (
        596_049_920,
        sizes("qwen3", 151936, 1024, 28, 16, 8, 3072, tie_word_embeddings=True),
    ),
    "gemma-2b": (2_506_172_416, sizes("gemma", 256000, 2048, 18, 8, 1, 16384, head_dim=256)),
    "gemma-2-2b": (2_614_341_888, sizes("gemma2", 256000, 2304, 26, 8, 4, 9216, head_dim=256)),
    "gemma-3-1b": (
        999_885_952,
        sizes("gemma3_text", 262144, 1152, 26, 4, 1, 6912, head_dim=256),
    ),
    "phi-2": (2_779_683_840, sizes("phi", 51200, 2560, 32, 32, 32, 10240)),
    "phi-3-mini": (3_821_079_552, sizes("phi3", 32064, 3072, 32, 32, 32, 8192)),
    "olmo-2-7b": (7_298_617_344, sizes("olmo2", 100352, 4096, 32, 32, 32, 11008)),
    "starcoder2-3b": (3_030_371_328, sizes("starcoder2", 49152, 3072, 30, 24, 2, 12288)),
    "pythia-160m": (162_322_944, sizes("gpt_neox", 50304, 768, 12, 12, None, 3072)),
    "gpt2": (
        124_439_808,
        {
            "model_type": "gpt2",
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
    ),
    "gpt-j-6b": (
        6_050_882_784,
        {
            "model_type": "gptj",
            "n_embd": 4096,
            "n_head": 16,
            "n_inner": None,
            "n_layer": 28,
            "n_positions": 2048,
            "tie_word_embeddings": False,
            "vocab_size": 50400,
        },
    ),
    "opt-350m": (
        331_196_416,
        {
            "model_type": "opt",
            "do_layer_norm_before": False,
            "ffn_dim": 4096,
            "hidden_size": 1024,
            "max_position_embeddings": 2048,
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "vocab_size": 50272,
            "word_embed_proj_dim": 512,
        },
    ),
    "falcon-7b": (
        6_921_720_704,
        {
            "model_type": "falcon",
            "bias": False,
            "hidden_size": 4544,
            "multi_query": True,
            "num_attention_heads": 71,
            "num_hidden_layers": 32,
            "parallel_attn": True,
            "vocab_size": 65024,
        },
    ),
    "mixtral-8x7b": (
        46_702_792_704,
        sizes("mixtral", 32000, 4096, 32, 32, 8, 14336, num_local_experts=8, num_experts_per_tok=2),
    ),
    "qwen1.5-moe-a2.7b": (
        14_315_784_192,
        sizes(
            "qwen2_moe",
            *(151936, 2048, 24, 16, 16, 5632),
            num_experts=60,
            num_experts_per_tok=4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
        ),
    ),
    "deepseek-v2-lite": (
        15_706_484_224,
        sizes(
            "deepseek_v2",
            *(102400, 2048, 27, 16, 16, 10944),
            first_k_dense_replace=1,
            kv_lora_rank=512,
            moe_intermediate_size=1408,
            n_routed_experts=64,
            n_shared_experts=2,
            num_experts_per_tok=6,
            q_lora_rank=None,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        ),
    ),
    "qwen3-next-80b-a3b": (
        79_674_391_296,
        sizes("qwen3_next", 151936, 2048, 48, 16, 2, 5120, full_attention_interval=4),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_weights(name):
    params, document = PUBLISHED[name]
    assert shape_of_config(document, name).num_params == params


def test_a_missing_number_of_key_value_heads_means_all_heads():
    shape = shape_of_config(LLAMA, "tiny")
    assert (shape.kv_heads, shape.head_dim, shape.tied_embeddings) == (4, 2, False)
    assert shape == shape_of_config(
        {**LLAMA, "num_key_value_heads": None, "head_dim": None}, "tiny"
    )


def test_families_have_defaults_of_their_own():
    shape = shape_of_config({**LLAMA, "model_type": "qwen3", "num_key_value_heads": 2}, "tiny")
    assert shape.head_dim == 128
    assert shape_of_config({**LLAMA, "model_type": "gemma3_text"}, "tiny").tied_embeddings


def test_an_architecture_may_leave_sizes_to_the_family():
    shape = shape_of_architecture({"model_type": "gpt2", "n_layer": 3}, "mine")
    assert (shape.layers, shape.hidden, shape.vocab, shape.ffn) == (3, 768, 50257, 3072)
    shape = shape_of_architecture({"model_type": "gpt2", "hidden_size": 24, "n_head": 2}, "mine")
    assert (shape.hidden, shape.ffn) == (24, 96)


def test_biases_count():
    plain = shape_of_config(LLAMA, "tiny")
    biased = shape_of_config({**LLAMA, "attention_bias": True, "mlp_bias": True}, "tiny")
    # Queries, keys, values and output 8 each; gate and up 16, down 8.
    assert biased.num_params - plain.num_params == 2 * (4 * 8 + 2 * 16 + 8)


@pytest.mark.parametrize(
    ("keys", "dense"),
    [
        ({}, 0),
        ({"decoder_sparse_step": 2}, 2),
        ({"mlp_only_layers": [0, 3]}, 2),
        ({"mlp_only_layers": [1], "decoder_sparse_step": 2}, 3),
    ],
)
def test_layers_that_stay_dense(keys, dense):
    document = sizes("qwen3_moe", 32, 8, 4, 4, 2, 16, moe_intermediate_size=4, **keys)
    assert shape_of_config(document, "tiny").dense_layers == dense


def test_the_language_model_inside_one_that_sees():
    inner = {key: value for key, value in LLAMA.items() if key != "model_type"}
    outer = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": inner | {"num_key_value_heads": 2, "head_dim": 4},
        "vision_config": {"hidden_size": 99},
        "tie_word_embeddings": False,
    }
    shape = shape_of_config(outer, "sees")
    assert (shape.hidden, shape.kv_heads, shape.tied_embeddings) == (8, 2, False)
    alone = shape_of_config({**outer["text_config"], "model_type": "gemma3_text"}, "sees")
    assert alone.num_params == shape.num_params - shape.head_params


def test_a_text_encoder_inside_another_model_is_no_language_model():
    inner = {**LLAMA, "model_type": "clip_text_model"}
    outer = {"model_type": "clip", "architectures": ["CLIPModel"], "text_config": inner}
    with pytest.raises(ConfigError, match="is that of CLIPModel, no causal language model"):
        shape_of_config(outer, "clip")


def test_nemotron_blocks_have_letters_or_words():
    letters = {
        "model_type": "nemotron_h",
        "hidden_size": 8,
        "num_attention_heads": 8,
        "vocab_size": 32,
        "intermediate_size": 16,
        "hybrid_override_pattern": "MEM*-",
        "num_hidden_layers": 99,
    }
    shape = shape_of_config(letters, "tiny")
    assert (shape.layers, shape.attention_layers, shape.recurrent_layers) == (5, 1, 2)
    assert (shape.expert_layers, shape.dense_layers) == (1, 1)
    words = {key: letters[key] for key in letters if key != "hybrid_override_pattern"}
    words["layers_block_type"] = ["mamba", "moe", "linear_attention", "full_attention", "mlp"]
    assert shape_of_config(words, "tiny") == shape
    with pytest.raises(ConfigError, match="a block 'X'"):
        shape_of_config({**letters, "hybrid_override_pattern": "MX"}, "tiny")
    with pytest.raises(ConfigError, match="moe_latent_size"):
        shape_of_config({**letters, "moe_latent_size": 4}, "tiny")


def test_an_unknown_family_with_the_usual_keys_is_like_llama():
    known = shape_of_config({**LLAMA, "num_key_value_heads": 2}, "x")
    other = {**LLAMA, "num_key_value_heads": 2, "model_type": "novel", "hidden_act": "silu"}
    assert shape_of_config(other, "x") == known
    assert not shape_of_config({**other, "hidden_act": "gelu"}, "x").gated_mlp
    del other["intermediate_size"]
    plain = shape_of_config(other, "x")
    assert (plain.gated_mlp, plain.ffn) == (False, 32)


def test_an_unknown_family_with_experts_and_latent_attention():
    document = {
        **LLAMA,
        "model_type": "novel",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 5,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 3,
        "qk_rope_head_dim": 2,
        "qk_nope_head_dim": 4,
        "v_head_dim": 4,
    }
    shape = shape_of_config(document, "x")
    assert (shape.experts, shape.expert_ffn, shape.dense_layers) == (6, 5, 1)
    assert (shape.shared_experts, shape.cache_values_per_token) == (1, 2 * 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"hidden_size": None, "num_hidden_layers": None}, "lacks hidden_size, num_hidden_layers"),
        ({"intermediate_size": None}, "lacks intermediate_size"),
        ({"hidden_size": "8"}, "hidden_size = '8'"),
        ({"hidden_size": 8.0}, r"hidden_size = 8\.0"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"vocab_size": -3}, "vocab_size = -3"),
        ({"num_key_value_heads": 3}, "4 heads and 3 key-value heads"),
        ({"num_attention_heads": 16}, "num_attention_heads = 16"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes'"),
        ({"model_type": 7}, "model_type = 7"),
        ({"model_type": "vit"}, "lacks vocab_size"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "that of t5, no causal"),
        ({"model_type": "novel", "layer_types": ["linear_attention"]}, "linear_attention"),
        ({"model_type": "novel", "mamba_d_state": 16}, "mamba_d_state"),
        ({"model_type": "novel", "layer_types": 5}, "layer_types = 5"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": ["a"]}, r"mlp_only_layers = \['a'\]"),
        (
            {"model_type": "mixtral", "num_key_value_heads": 4, "num_experts_per_tok": 9},
            "9 of 8 experts",
        ),
    ],
)
def test_configs_that_say_no_shape(changes, message):
    document = {**LLAMA, **changes}
    if changes.get("model_type") == "vit":
        del document["vocab_size"]
    with pytest.raises(ConfigError, match=message) as caught:
        shape_of_config(document, "mine")
    assert caught.value.right
    assert caught.value.do


def test_a_file_is_named_after_its_folder(tmp_path):
    folder = tmp_path / "actor"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert shape_of_config_file(folder / "config.json") == shape_of_config(LLAMA, "actor")
    (folder / "small.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert shape_of_config_file(folder / "small.json").name == "small"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no JSON"),
        (b'{"hidden_size": 8', "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"\xff\xfe\x00", "is no JSON"),
        (b"[1, 2]", "holds no JSON object, but list"),
        (b"{}", "lacks hidden_size, num_hidden_layers, num_attention_heads, vocab_size"),
    ],
)
def test_broken_files_are_refused_with_their_path(tmp_path, content, message):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        shape_of_config_file(file)
    assert str(file) in caught.value.wrong


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        shape_of_config_file(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        shape_of_config_file(tmp_path)
