from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import replace

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.costs.role_shape import model_shape, shape_of_role
from flexrlhf.planning.costs.shape_catalogue import SHAPES

ARCHITECTURE = {
    "model_type": "qwen2",
    "vocab_size": 40,
    "hidden_size": 8,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
QWEN2_PARAMS = 2 * 40 * 8 + 3 * (192 + 3 * 8 * 24 + 16 + 2 * 8) + 8


@pytest.fixture
def model_folder(tmp_path):
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(ARCHITECTURE), encoding="utf-8")
    return folder


def test_a_shape_is_a_name_or_a_config(model_folder):
    assert model_shape("llama-7b") is SHAPES["llama-7b"]
    assert model_shape(f"{model_folder}/config.json").num_params == QWEN2_PARAMS


def test_a_folder_is_no_shape(model_folder):
    with pytest.raises(ConfigError, match="is a folder") as caught:
        model_shape(str(model_folder))
    assert f"{model_folder}/config.json" in caught.value.do


def test_each_source_of_a_role_gives_the_same_shape(model_folder):
    by_path = shape_of_role("actor", path=str(model_folder))
    by_shape = shape_of_role("actor", shape=f"{model_folder}/config.json")
    by_architecture = shape_of_role("actor", architecture=ARCHITECTURE)
    assert by_path == by_shape == replace(by_architecture, name="policy")
    assert by_path.num_params == QWEN2_PARAMS


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({}, r"model\.critic has 0 of path, shape and architecture"),
        ({"path": "a", "shape": "b"}, r"model\.critic has 2 of"),
        ({"path": "hub:org/name"}, r"model\.critic\.path: hub:org/name is not on this machine"),
        ({"path": "stage:sft/actor"}, "stage:sft/actor is not on this machine"),
        ({"path": "nowhere/at/all"}, r"model\.critic\.path: nowhere/at/all does not exist"),
        ({"shape": "llama-8b"}, r"model\.critic\.shape: No model shape is called 'llama-8b'"),
        ({"shape": "none.json"}, r"model\.critic\.shape: none\.json cannot be read"),
        (
            {"architecture": {"model_type": "novel"}},
            r"model\.critic\.architecture: .* lacks hidden",
        ),
        (
            {"architecture": {**ARCHITECTURE, "num_key_value_heads": 3}},
            r"model\.critic\.architecture: .* 4 heads and 3 key-value heads",
        ),
    ],
)
def test_what_gives_no_shape_is_refused_with_its_key(sources, message):
    with pytest.raises(ConfigError, match=message) as caught:
        shape_of_role("critic", **sources)
    assert caught.value.right
    assert caught.value.do


def test_hub_models_need_a_shape():
    with pytest.raises(ConfigError) as caught:
        shape_of_role("actor", path="hub:org/name")
    assert "Give shape: NAME" in caught.value.do


def test_paths_without_a_model(tmp_path):
    with pytest.raises(ConfigError, match=r"is a folder without config\.json"):
        shape_of_role("actor", path=str(tmp_path))
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ConfigError, match="is no folder"):
        shape_of_role("actor", path=str(tmp_path / "weights.bin"))


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def gguf(keys: list[bytes], tensors: dict[str, tuple[int, ...]], version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    infos = b"".join(
        text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, 0)
        for name, sizes in tensors.items()
    )
    return head + b"".join(keys) + infos


def gguf_keys(family: str = "qwen2") -> list[bytes]:
    words = b"".join(text(f"word-{index}") for index in range(2000))
    return [
        text("general.architecture") + struct.pack("<I", 8) + text(family),
        number(f"{family}.block_count", 3),
        number(f"{family}.embedding_length", 8),
        number(f"{family}.feed_forward_length", 24),
        number(f"{family}.attention.head_count", 4),
        number(f"{family}.attention.head_count_kv", 2),
        text(f"{family}.rope.freq_base") + struct.pack("<If", 6, 1e4),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2000) + words,
        text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 2000) + b"\0" * 8000,
        text("tokenizer.ggml.few") + struct.pack("<IIQ3I", 9, 4, 3, 7, 8, 9),
    ]


TENSORS = {"token_embd.weight": (8, 40), "output.weight": (8, 40), "output_norm.weight": (8,)}


def test_a_gguf_file_says_its_shape_in_its_head(tmp_path):
    file = tmp_path / "policy.gguf"
    file.write_bytes(gguf(gguf_keys(), TENSORS) + b"weights")
    shape = shape_of_role("actor", path=str(file))
    assert shape == replace(shape_of_role("actor", architecture=ARCHITECTURE), name="policy")
    file.write_bytes(gguf(gguf_keys(), {"token_embd.weight": (8, 40)}, version=2))
    assert shape_of_role("actor", path=str(file)).tied_embeddings


def test_biases_of_a_gguf_file_are_seen_in_its_tensors(tmp_path):
    file = tmp_path / "policy.gguf"
    biases = {f"blk.0.{part}.bias": (8,) for part in ("attn_output", "ffn_down")}
    file.write_bytes(gguf(gguf_keys("llama"), TENSORS | biases))
    biased = shape_of_role("actor", path=str(file))
    file.write_bytes(gguf(gguf_keys("llama"), TENSORS))
    plain = shape_of_role("actor", path=str(file))
    assert biased.num_params - plain.num_params == 3 * (8 + 2 * 4 + 8 + 2 * 24 + 8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\3\4", "it does not begin with GGUF"),
        (gguf(gguf_keys(), TENSORS, version=1), "its version is 1"),
        (gguf(gguf_keys("mamba"), TENSORS), "of the family 'mamba'"),
        (gguf([*gguf_keys(), number("qwen2.expert_count", 4)], TENSORS), "qwen2 with experts"),
        (gguf(gguf_keys(), {}), r"has no matrix token_embd\.weight"),
        (gguf([text("a") + struct.pack("<I", 77)], {}), "a value of the unknown type 77"),
        (gguf([text("a") + struct.pack("<IIQ", 9, 9, 2000)], {}), "a long array of arrays"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "is no whole GGUF file"),
        (gguf([text("a") + struct.pack("<IIQ", 9, 12, 2**62)], {}), "is no whole GGUF file"),
    ],
)
def test_gguf_files_that_say_no_shape(tmp_path, content, message):
    file = tmp_path / "policy.gguf"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        shape_of_role("actor", path=str(file))
    assert caught.value.right
    assert caught.value.do


def test_a_gguf_file_that_stops_anywhere_in_its_head_is_refused(tmp_path):
    file = tmp_path / "policy.gguf"
    whole = gguf(gguf_keys()[:7], TENSORS)
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match="is no whole GGUF file"):
            shape_of_role("actor", path=str(file))


def test_no_tensor_library_is_loaded():
    code = (
        "import sys; from flexrlhf.planning.costs.role_shape import shape_of_role; "
        "shape_of_role('actor', shape='llama-7b'); "
        "print({'torch', 'transformers', 'gguf', 'numpy'} & sys.modules.keys())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "set()"
