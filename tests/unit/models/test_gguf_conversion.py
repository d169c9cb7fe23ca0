"""GGUF files that the test writes itself, as llama.cpp would, against the models they came from."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.gguf_conversion import converted_folder
from flexrlhf.learning.models.loading import load_policy, load_scorer, load_tokenizer
from flexrlhf.learning.models.sizes import num_parameters
from flexrlhf.learning.models.source import ModelSource

END, START, DIGITS_AFTER = "<|im_end|>", "<|im_start|>", "ĊĊ"
MERGES = ["Ċ Ċ", "Ġ Ġ", "h i"]
TOKENS = [END, START, *bytes_to_unicode().values(), DIGITS_AFTER, "ĠĠ", "hi"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
LLAMA = {"vocab_size": len(TOKENS), "rms_norm_eps": 1e-5, "rope_theta": 1234.0}


def llama_cpp_order(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rotary pairs next to each other, where Hugging Face has them half a head apart."""
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def as_llama_cpp(name: str, parameter: torch.Tensor, config) -> np.ndarray:
    """What llama.cpp's converter makes of a weight."""
    weight = parameter.detach().numpy()
    if config.model_type == "gpt2" and name.split(".")[-2] in ("c_attn", "c_proj", "c_fc"):
        return weight.T
    if config.model_type == "llama" and "q_proj" in name:
        return llama_cpp_order(weight, config.num_attention_heads)
    if config.model_type == "llama" and "k_proj" in name:
        return llama_cpp_order(weight, config.num_key_value_heads)
    return weight


def tensors_of(model) -> dict[str, np.ndarray]:
    family = next(
        arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == model.config.model_type
    )
    names = gguf.get_tensor_name_map(family, model.config.num_hidden_layers)
    return {
        names.get_name(name, (".weight", ".bias")): np.ascontiguousarray(
            as_llama_cpp(name, parameter, model.config)
        )
        for name, parameter in model.named_parameters()
    }


def write_gguf(file: Path, model, *, leave_out=(), add=None, pre="smollm", **keys) -> Path:
    """Writes a model with a byte-level tokenizer."""
    config = model.config
    writer = gguf.GGUFWriter(file, config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.model_type == "llama":
        writer.add_rope_dimension_count(config.head_dim)
    if config.model_type == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for key, value in keys.items():
        writer.add_string(key, value)
    for name, weight in {**tensors_of(model), **(add or {})}.items():
        if name not in leave_out:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FLEXRLHF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.fixture
def llama(make_source):
    return load_policy(make_source("llama", dtype="float32", **LLAMA))


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("llama", {**LLAMA, "tie_word_embeddings": True}),
        ("llama", {**LLAMA, "tie_word_embeddings": False}),
        ("qwen2", LLAMA),
        ("qwen3", LLAMA),
        ("gpt2", {"vocab_size": len(TOKENS)}),
    ],
)
def test_logits_are_those_of_the_model_it_was_made_from(family, keys, make_source, tmp_path):
    model = load_policy(make_source(family, dtype="float32", **keys))
    repeated = {}
    if family == "gpt2":
        repeated["output.weight"] = model.lm_head.weight.detach().numpy()
    file = write_gguf(tmp_path / "tiny.gguf", model, add=repeated)
    loaded = load_policy(ModelSource(path=str(file)))
    tokens = torch.arange(40)[None]
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=0, atol=0)
    tied = loaded.lm_head.weight is loaded.get_input_embeddings().weight
    assert tied == model.config.tie_word_embeddings
    assert num_parameters(loaded) == num_parameters(model)


def test_numbers_of_the_config_are_those_that_were_meant(llama, tmp_path):
    config = load_policy(ModelSource(path=str(write_gguf(tmp_path / "tiny.gguf", llama)))).config
    assert (config.rms_norm_eps, config.rope_parameters["rope_theta"]) == (1e-5, 1234.0)


def test_head_that_repeats_the_embedding_is_tied(llama, tmp_path):
    weight = llama.lm_head.weight.detach().numpy()
    file = write_gguf(tmp_path / "tiny.gguf", llama, add={"output.weight": weight})
    loaded = load_policy(ModelSource(path=str(file)))
    assert loaded.config.tie_word_embeddings
    assert num_parameters(loaded) == num_parameters(llama)


def test_scorers_start_from_gguf_too(llama, tmp_path):
    file = write_gguf(tmp_path / "tiny.gguf", llama)
    scorer = load_scorer(ModelSource(path=str(file)))
    torch.testing.assert_close(scorer.model.norm.weight, llama.model.norm.weight)


def test_tokenizer_keeps_special_tokens_and_chat_template(llama, tmp_path):
    tokenizer = load_tokenizer(str(write_gguf(tmp_path / "tiny.gguf", llama)))
    assert [tokenizer.convert_tokens_to_ids(token) for token in TOKENS] == list(range(len(TOKENS)))
    assert (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token) == (END, START, END)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n"
    ids = tokenizer(text).input_ids
    assert (ids[0], ids[-2], ids.count(0), ids.count(1)) == (1, 0, 1, 1)
    assert tokenizer.decode(ids) == text


def test_digits_stand_apart_from_the_spaces_before_them(llama, tmp_path):
    for pre, expected in (("smollm", ["hi", "ĊĊ", "1"]), ("gpt-2", ["hi", "Ċ", "Ċ", "1"])):
        tokenizer = load_tokenizer(str(write_gguf(tmp_path / f"{pre}.gguf", llama, pre=pre)))
        assert tokenizer.tokenize("hi\n\n1") == expected


def test_file_is_converted_once(llama, tmp_path, cache):
    file = write_gguf(tmp_path / "tiny.gguf", llama)
    folder = converted_folder(file)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    copy = tmp_path / "elsewhere" / "tiny.gguf"
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    assert converted_folder(file) == converted_folder(copy) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    with torch.no_grad():
        llama.model.norm.weight.mul_(2)
    other = converted_folder(write_gguf(file, llama))
    assert sorted(path.name for path in cache.iterdir()) == sorted([folder.name, other.name])


def test_conversion_is_quiet(llama, tmp_path, capfd):
    converted_folder(write_gguf(tmp_path / "tiny.gguf", llama))
    assert capfd.readouterr() == ("", "")


def refusal(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        converted_folder(file)
    return caught.value.wrong


def test_files_that_cannot_be_converted_whole_are_refused(llama, tmp_path, cache):
    file = tmp_path / "tiny.gguf"
    zeros = np.zeros(32, dtype=np.float32)
    write_gguf(file, llama, add={"blk.0.attn_q.bias": zeros})
    assert "no place for, blk.0.attn_q.bias first" in refusal(file)
    write_gguf(file, llama, leave_out={"blk.1.ffn_up.weight"})
    assert "lacks 1 of the model's weights, model.layers.1.mlp.up_proj.weight" in refusal(file)
    write_gguf(file, llama, add={"rope_freqs.weight": zeros[:4]})
    assert "stretches its rotary positions (rope_freqs.weight)" in refusal(file)
    write_gguf(file, llama, **{"llama.rope.scaling.type": "yarn"})
    assert "stretches its rotary positions (llama.rope.scaling.type)" in refusal(file)
    write_gguf(file, llama, pre="unheard-of")
    assert "the rule 'unheard-of', which is unknown here" in refusal(file)
    write_gguf(file, llama)
    file.write_bytes(file.read_bytes()[:-1000])
    assert "no whole GGUF file" in refusal(file)
    file.write_bytes(b"GGUF")
    assert "no whole GGUF file" in refusal(file)
    file.write_bytes(b"something else")
    assert "no whole GGUF file" in refusal(file)
    assert list(cache.iterdir()) == []


@pytest.mark.slow
def test_smollm2(tmp_path):
    path = os.environ.get("FLEXRLHF_SMOLLM2")
    if path is None:
        pytest.skip("FLEXRLHF_SMOLLM2 names no SmolLM2-135M-Instruct GGUF file")
    source = ModelSource(path=path)
    model, tokenizer = load_policy(source), load_tokenizer(source)
    assert num_parameters(model) == 134_515_008
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert tokenizer.eos_token == tokenizer.pad_token == END
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert tokenizer.tokenize("x:\n\n  12") == ["x", ":", "ĊĊĠĠ", "1", "2"]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, do_sample=False, max_new_tokens=20)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"
