"""Loading from folders and at random: the same weights every time, and nothing lost in silence."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, BertConfig

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.loading import (
    load_policy,
    load_scorer,
    load_shared_actor_critic,
    load_tokenizer,
)
from flexrlhf.learning.models.saving import save_model
from flexrlhf.learning.models.sizes import max_positions, num_parameters
from flexrlhf.learning.models.source import ModelSource


def assert_same_weights(one: torch.nn.Module, other: torch.nn.Module) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=0, atol=0)


def is_tied(model) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.fixture
def policy_folder(family, make_source, make_tokenizer, tmp_path):
    folder = tmp_path / family
    save_model(load_policy(make_source(family, dtype="float32")), make_tokenizer(), folder)
    return folder


def test_random_weights_depend_on_the_seed_alone(make_source):
    source = make_source("llama")
    torch.manual_seed(1)
    one = load_policy(source)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert_same_weights(one, load_policy(source))
    torch.manual_seed(1)
    load_policy(source)
    torch.testing.assert_close(torch.get_rng_state(), state)
    another = load_policy(make_source("llama", seed=1))
    assert not torch.equal(one.lm_head.weight, another.lm_head.weight)


def test_every_dtype_starts_from_the_same_weights(make_source):
    exact = load_policy(make_source("llama", dtype="float64"))
    for dtype in ("float32", "bfloat16"):
        model = load_policy(make_source("llama", dtype=dtype))
        for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=0, atol=0)


def test_dtype_holds_for_every_parameter_but_not_for_rotary_frequencies(make_source, tmp_path):
    save_model(load_policy(make_source("llama")), None, tmp_path / "model")
    saved = ModelSource(path=str(tmp_path / "model"), dtype="bfloat16")
    for model in (load_policy(saved), load_scorer(saved), load_shared_actor_critic(saved)):
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}


def test_tied_embeddings_stay_tied(family, make_source, policy_folder):
    tied = family != "qwen2"
    for source in (make_source(family), ModelSource(path=str(policy_folder), dtype="float64")):
        assert is_tied(load_policy(source)) == tied
    embedding = 61 * 32
    count = num_parameters(load_policy(make_source(family)))
    assert count == num_parameters(load_scorer(make_source(family))) - 32 + (not tied) * embedding


def test_saved_model_loads_with_its_weights(family, make_source, policy_folder):
    loaded = load_policy(ModelSource(path=str(policy_folder)))
    assert_same_weights(loaded, load_policy(make_source(family, dtype="float32")))
    assert not loaded.training
    assert max_positions(loaded) == 64


def test_training_mode_is_deterministic(family, make_source):
    noisy = {"gpt2": ("attn_pdrop", "resid_pdrop", "embd_pdrop")}
    keys = noisy.get(family, ("attention_dropout",))
    for model in (
        load_policy(make_source(family, **dict.fromkeys(keys, 0.5))),
        load_scorer(make_source(family, **dict.fromkeys(keys, 0.5))),
    ):
        tokens = torch.arange(8)[None]
        quiet = model(tokens).logits
        model.train()
        torch.testing.assert_close(model(tokens).logits, quiet, rtol=0, atol=0)


def test_scorer_of_a_language_model_gets_a_small_fresh_head(family, policy_folder, capfd, caplog):
    source = ModelSource(path=str(policy_folder), seed=3)
    with caplog.at_level(logging.INFO):
        one, other = load_scorer(source), load_scorer(source)
    assert_same_weights(one, other)
    assert one.score.weight.shape == (1, 32)
    assert 0 < one.score.weight.abs().max() < 5 / 33
    another_seed = load_scorer(ModelSource(path=str(policy_folder), seed=4))
    assert not torch.equal(one.score.weight, another_seed.score.weight)
    policy = load_policy(source)
    assert_same_weights(one.base_model, policy.base_model)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_loading_leaves_the_global_random_state_alone(make_source, tmp_path):
    save_model(load_policy(make_source("llama")), None, tmp_path / "model")
    state = torch.get_rng_state()
    load_scorer(ModelSource(path=str(tmp_path / "model")))
    torch.testing.assert_close(torch.get_rng_state(), state)


def test_scorer_loads_with_its_head(family, make_source, tmp_path):
    scorer = load_scorer(make_source(family, dtype="float32", seed=7))
    save_model(scorer, None, tmp_path / "scorer")
    assert_same_weights(load_scorer(ModelSource(path=str(tmp_path / "scorer"))), scorer)


def test_classifier_with_several_labels_is_refused(make_source, tmp_path):
    config = load_policy(make_source("llama")).config
    config.num_labels = 3
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "labels")
    with pytest.raises(ConfigError, match="3 labels"):
        load_scorer(ModelSource(path=str(tmp_path / "labels")))


def test_classifier_is_no_policy(make_source, tmp_path):
    save_model(load_scorer(make_source("llama")), None, tmp_path / "scorer")
    with pytest.raises(ConfigError, match="no language-model head"):
        load_policy(ModelSource(path=str(tmp_path / "scorer")))


def test_classifier_of_an_encoder_is_no_scorer(tmp_path):
    config = BertConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        vocab_size=11,
        num_labels=1,
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(ConfigError, match="no linear head `score`"):
        load_scorer(ModelSource(path=str(tmp_path / "bert")))


@pytest.mark.parametrize("load", [load_policy, load_scorer])
def test_encoders_are_refused(load):
    source = ModelSource(
        architecture={
            "model_type": "bert",
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "intermediate_size": 8,
            "vocab_size": 11,
        }
    )
    with pytest.raises(ConfigError):
        load(source)


def test_shared_actor_critic_loads_with_its_value_head(make_source, tmp_path):
    model = load_shared_actor_critic(make_source("gpt2", dtype="float32"))
    with torch.no_grad():
        model.value_head.bias.fill_(0.5)
    save_model(model, None, tmp_path / "shared")
    source = ModelSource(path=str(tmp_path / "shared"), seed=9)
    loaded = load_shared_actor_critic(source)
    assert_same_weights(loaded, model)
    assert is_tied(loaded.trunk)
    assert_same_weights(load_policy(source), model.trunk)


def test_value_head_of_another_model_is_refused(make_source, tmp_path):
    save_model(load_shared_actor_critic(make_source("llama")), None, tmp_path / "shared")
    save_file({"weight": torch.zeros(1, 5)}, tmp_path / "shared" / "value_head.safetensors")
    with pytest.raises(ConfigError, match="does not fit its trunk"):
        load_shared_actor_critic(ModelSource(path=str(tmp_path / "shared")))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "lama"}, "Did you mean 'llama'"),
        ({"hidden_size": 8}, "model_type = None"),
        ({"model_type": "llama", "hiden_size": 8}, "Did you mean 'hidden_size'"),
        ({"model_type": "llama", "hidden_size": "wide"}, "expected int"),
        ({"model_type": "llama", "hidden_size": 33, "num_attention_heads": 4}, "not a multiple"),
        ({"model_type": []}, r"model_type = \[\] of the architecture is unknown"),
        ({"model_type": "llama", "num_attention_heads": 0}, "is not valid: ZeroDivisionError"),
        ({"model_type": "llama", "torch_dtype": "float7"}, "is not valid: AttributeError"),
    ],
)
def test_wrong_architectures_are_explained(keys, message):
    with pytest.raises(ConfigError, match=message):
        load_policy(ModelSource(architecture=keys))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_size": 0}, "makes no model: ZeroDivisionError"),
        ({"vocab_size": -3}, "makes no model: RuntimeError"),
        ({"hidden_act": "foo"}, "makes no model: KeyError: 'foo'"),
        ({"rope_scaling": {"type": "foo"}}, "makes no model: KeyError"),
        ({"intermediate_size": 10**12}, "GB of memory, .* GB are free"),
    ],
)
@pytest.mark.parametrize("load", [load_policy, load_scorer])
def test_architectures_that_make_no_model_are_explained(make_source, load, keys, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load(make_source("llama", **keys))
    assert "\n" not in caught.value.wrong


def test_older_keys_of_an_architecture_work(make_source):
    config = load_policy(make_source("llama", rope_theta=123.0)).config
    assert config.rope_parameters["rope_theta"] == 123.0


def test_special_tokens_outside_a_small_vocabulary_are_dropped(make_source):
    config = load_policy(make_source("gpt2")).config
    assert (config.bos_token_id, config.eos_token_id) == (None, None)


def test_source_is_a_path_or_an_architecture():
    with pytest.raises(ConfigError, match="neither"):
        ModelSource()
    with pytest.raises(ConfigError, match="both"):
        ModelSource(path="model", architecture={"model_type": "llama"})


def test_unknown_dtype_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'bfloat16'"):
        ModelSource(path="model", dtype="bfloat")


def test_missing_folder_says_what_is_there(tmp_path):
    (tmp_path / "actor").mkdir()
    (tmp_path / "reward").mkdir()
    with pytest.raises(ConfigError, match=r"holds actor, reward\.(.|\n)*Did you mean 'actor'"):
        load_policy(ModelSource(path=str(tmp_path / "acter")))
    with pytest.raises(ConfigError, match=r"holds actor, reward\."):
        load_policy(ModelSource(path=str(tmp_path / "models" / "actor")))


def test_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"not a \.gguf file"):
        load_policy(ModelSource(path=str(tmp_path / "weights.bin")))


def test_folder_without_config_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"no config\.json; it holds notes\.txt"):
        load_policy(ModelSource(path=str(tmp_path)))


def test_pickled_weights_are_refused(make_source, tmp_path):
    folder = tmp_path / "model"
    save_model(load_policy(make_source("llama")), None, folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="a pickle can run any code"):
        load_policy(ModelSource(path=str(folder)))


def test_code_of_a_folder_is_never_run(make_source, tmp_path):
    folder = tmp_path / "model"
    save_model(load_policy(make_source("llama")), None, folder)
    (folder / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoConfig": "mine.MyConfig"}}'
    )
    (folder / "mine.py").write_text("raise SystemExit('was run')")
    with pytest.raises(ConfigError, match="code inside a folder is never run"):
        load_policy(ModelSource(path=str(folder)))


def test_missing_weights_are_refused(make_source, tmp_path):
    folder = tmp_path / "model"
    save_model(load_policy(make_source("qwen2")), None, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 .* lm_head\.weight first"):
        load_policy(ModelSource(path=str(folder)))
    load_scorer(ModelSource(path=str(folder)))
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 .* model\.norm\.weight first"):
        load_scorer(ModelSource(path=str(folder)))


def test_damaged_weights_are_refused(make_source, tmp_path):
    folder = tmp_path / "model"
    save_model(load_policy(make_source("llama")), None, folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="do not load"):
        load_policy(ModelSource(path=str(folder)))


def test_weights_of_another_shape_are_refused(make_source, tmp_path):
    folder = tmp_path / "model"
    save_model(load_policy(make_source("llama")), None, folder)
    config = folder / "config.json"
    config.write_text(
        config.read_text().replace('"intermediate_size": 48', '"intermediate_size": 4')
    )
    with pytest.raises(ConfigError, match="do not load"):
        load_policy(ModelSource(path=str(folder)))


def test_hub_names_are_downloaded_only_when_asked_for(make_source, tmp_path, monkeypatch):
    folder = tmp_path / "snapshot"
    save_model(load_policy(make_source("llama")), None, folder)
    asked = []

    def download(name, allow_patterns):
        asked.append(name)
        assert "*.bin" not in allow_patterns
        if name != "org/model":
            raise OSError("no such repository")
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    load_policy(ModelSource(path="hub:org/model"))
    with pytest.raises(ConfigError, match="There is no model at org/model"):
        load_policy(ModelSource(path="org/model"))
    assert asked == ["org/model"]
    with pytest.raises(ConfigError, match="could not be downloaded: no such repository"):
        load_policy(ModelSource(path="hub:org/other"))


def test_tokenizer_lies_beside_the_model_or_elsewhere(make_source, make_tokenizer, tmp_path):
    model = load_policy(make_source("llama"))
    save_model(model, make_tokenizer(), tmp_path / "with")
    save_model(model, None, tmp_path / "without")
    expected = make_tokenizer().get_vocab()
    beside = ModelSource(path=str(tmp_path / "with"))
    elsewhere = ModelSource(path=str(tmp_path / "without"), tokenizer=str(tmp_path / "with"))
    assert load_tokenizer(beside).get_vocab() == expected
    assert load_tokenizer(elsewhere).get_vocab() == expected
    assert load_tokenizer(str(tmp_path / "with"))("blue green").input_ids == [4, 3]
    with pytest.raises(ConfigError, match="no tokenizer that can be read"):
        load_tokenizer(ModelSource(path=str(tmp_path / "without")))
    with pytest.raises(ConfigError, match="no tokenizer of its own"):
        load_tokenizer(make_source("llama"))


def test_a_random_model_ends_at_no_token_that_its_architecture_does_not_name():
    """Llama's own default, 2, is an ordinary word of another vocabulary."""
    sizes = {"vocab_size": 54, "hidden_size": 16, "intermediate_size": 16}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    architecture = {"model_type": "llama", **sizes, **layers}
    model = load_policy(ModelSource(architecture=architecture))
    assert model.config.eos_token_id is None
    assert model.generation_config.eos_token_id is None
    named = load_policy(ModelSource(architecture={**architecture, "eos_token_id": 13}))
    assert named.config.eos_token_id == 13


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", "5", '{"model": {}, "added_tokens": []}'])
def test_damaged_tokenizers_are_refused(make_tokenizer, tmp_path, file, content):
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / file).write_text(content)
    if file == "tokenizer_config.json" and "model" in content:
        load_tokenizer(str(tmp_path))  # keys that it does not know are no harm
        return
    with pytest.raises(ConfigError, match="has no tokenizer that can be read") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in caught.value.wrong


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": "wide"},
        {"num_attention_heads": 0},
        {"hidden_act": "foo"},
        {"vocab_size": -1},
        {"rope_parameters": 5},
    ],
)
def test_damaged_configs_are_refused(make_source, tmp_path, change):
    save_model(load_policy(make_source("llama")), None, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    for load in (load_policy, load_scorer):
        with pytest.raises(ConfigError):
            load(ModelSource(path=str(tmp_path / "model")))


def test_a_damaged_value_head_is_refused(make_source, tmp_path):
    save_model(load_shared_actor_critic(make_source("llama")), None, tmp_path / "shared")
    (tmp_path / "shared" / "value_head.safetensors").write_bytes(b"{")
    with pytest.raises(ConfigError, match="does not fit its trunk"):
        load_shared_actor_critic(ModelSource(path=str(tmp_path / "shared")))
