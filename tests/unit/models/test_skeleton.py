"""Models made without weights and filled afterwards are those that are loaded as a whole."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.loading import load_policy, load_scorer, load_shared_actor_critic
from flexrlhf.learning.models.materialising import materialise
from flexrlhf.learning.models.saving import save_model
from flexrlhf.learning.models.skeleton import (
    Skeleton,
    policy_skeleton,
    scorer_skeleton,
    shared_skeleton,
)
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.models.weight_parts import WeightPart, parameter_names

KINDS = {
    "policy": (load_policy, policy_skeleton),
    "scorer": (load_scorer, scorer_skeleton),
    "shared": (load_shared_actor_critic, shared_skeleton),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def filled(skeleton: Skeleton | None) -> nn.Module:
    """The model of one process that holds everything."""
    assert skeleton is not None, "it can surely be made"
    model = skeleton.model
    assert all(parameter.is_meta for parameter in model.parameters())
    names = parameter_names(model)
    materialise(model, model, names, torch.device("cpu"))
    parameters = ((several, model.get_parameter(several[0])) for several in names)
    skeleton.values.fill(
        [
            WeightPart(
                name=first,
                tied=tuple(tied),
                parameter=parameter,
                box=Box.whole(tuple(parameter.shape)),
                shape=tuple(parameter.shape),
                is_split_by_tensor=False,
                is_split_by_replica=False,
            )
            for (first, *tied), parameter in parameters
        ]
    )
    return model


def require_same(made: nn.Module, loaded: nn.Module) -> None:
    """Bit by bit, buffers and what is tied included."""
    assert parameter_names(made) == parameter_names(loaded)
    for tensors in ("named_parameters", "named_buffers"):
        ours, theirs = dict(getattr(made, tensors)()), dict(getattr(loaded, tensors)())
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert ours[name].dtype == tensor.dtype, name
            assert torch.equal(ours[name], tensor), name
    assert made.training == loaded.training
    trunks = [pretrained(model) for model in (made, loaded)]
    assert trunks[0].config.to_dict() == trunks[1].config.to_dict()
    assert trunks[0].config.name_or_path == trunks[1].config.name_or_path
    if trunks[0].can_generate():
        generation = [trunk.generation_config.to_dict() for trunk in trunks]
        assert generation[0] == generation[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_random_weights_are_the_same(make_source, family, kind, dtype):
    load, skeleton = KINDS[kind]
    source = make_source(family, dtype=dtype, seed=7)
    state = torch.get_rng_state()
    made = filled(skeleton(source))
    assert torch.equal(torch.get_rng_state(), state)
    require_same(made, load(source))


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_other_families_draw_the_same_scorers(make_source, name):
    source = make_source(name, seed=7)
    require_same(filled(scorer_skeleton(source)), load_scorer(source))


def test_a_padding_token_is_set_to_zero_alike(make_source):
    source = make_source("qwen2", pad_token_id=3)
    made = pretrained(filled(policy_skeleton(source)))
    assert not made.get_input_embeddings().weight[3].any()
    require_same(made, load_policy(source))


@pytest.fixture
def folder(family, make_source, make_tokenizer, tmp_path):
    model = load_policy(make_source(family, dtype="float32", eos_token_id=2))
    save_model(model, make_tokenizer(), tmp_path / family)
    return tmp_path / family


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_weights_of_a_folder_are_the_same(folder, kind, dtype):
    load, skeleton = KINDS[kind]
    source = ModelSource(path=str(folder), dtype=dtype, seed=7)
    require_same(filled(skeleton(source)), load(source))


@pytest.mark.parametrize("saved", ["scorer", "shared"])
def test_heads_in_a_folder_are_the_same(make_source, make_tokenizer, tmp_path, saved):
    load, skeleton = KINDS[saved]
    save_model(load(make_source("llama", dtype="float32")), make_tokenizer(), tmp_path / "model")
    source = ModelSource(path=str(tmp_path / "model"), seed=7)
    require_same(filled(skeleton(source)), load(source))


def test_weights_in_several_files_are_found(folder, kind):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: f"model-{place % 2}.safetensors" for place, name in enumerate(sorted(weights))}
    for file in set(files.values()):
        part = {name: tensor for name, tensor in weights.items() if files[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    load, skeleton = KINDS[kind]
    source = ModelSource(path=str(folder))
    require_same(filled(skeleton(source)), load(source))


def rewritten(folder, change) -> ModelSource:
    """The source of a folder whose weights were changed."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return ModelSource(path=str(folder))


@pytest.mark.parametrize("family", ["llama"], indirect=True)
def test_what_transformers_would_rename_is_loaded_as_a_whole(folder, caplog):
    """Names of the trunk alone, for one, as base models are saved."""

    def strip(weights) -> None:
        for name in list(weights):
            weights[name.removeprefix("model.")] = weights.pop(name)

    source = rewritten(folder, strip)
    with caplog.at_level("INFO"):
        assert policy_skeleton(source) is None
    assert "as a whole, not in parts: model.embed_tokens.weight lies in its" in caplog.text
    load_policy(source)


@pytest.mark.parametrize("family", ["llama"], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights.pop("model.norm.weight"),
        lambda weights: weights.update({"model.norm.weight": torch.ones(3)}),
        lambda weights: weights.update(
            {"lm_head.weight": weights["model.embed_tokens.weight"] + 1.0}
        ),
    ],
    ids=["absent", "of another shape", "tied but unlike"],
)
def test_doubtful_weights_are_left_to_the_whole_model(folder, change):
    assert policy_skeleton(rewritten(folder, change)) is None


def test_families_that_need_a_trial_are_left_to_the_whole_model(make_source):
    assert policy_skeleton(make_source("mistral")) is None
    assert policy_skeleton(make_source("gemma2")) is None


def test_what_is_wrong_is_left_to_the_whole_model(make_source, tmp_path):
    assert policy_skeleton(make_source("llama", hidden_act="unheard of")) is None
    assert policy_skeleton(ModelSource(path=str(tmp_path / "absent"))) is None
    assert scorer_skeleton(ModelSource(architecture={"model_type": "bert"})) is None
