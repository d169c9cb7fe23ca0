"""Layers cut over two processes compute, forward and backward, what one process computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from process_pool import ProcessPool
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.data.experience import Batch, collate_sequences
from flexrlhf.learning.models.forward import sequence_scores, shared_outputs, token_logprobs
from flexrlhf.learning.models.gradient_checkpointing import enable_gradient_checkpointing
from flexrlhf.learning.models.heads import SharedActorCritic
from flexrlhf.learning.models.loading import load_policy, load_scorer
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.models.tensor_parallel import check_tensor_parallel, tensor_parallelise

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
BIASES = {"attention_bias": True, "mlp_bias": True}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-biases": {"model_type": "llama", **BIASES},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": True},
}
ROLES = ("policy", "scorer", "shared")


def source(name: str) -> ModelSource:
    return ModelSource(architecture={**SIZES, **MODELS[name]}, dtype="float64", seed=3)


def built(name: str, role: str) -> nn.Module:
    if role == "scorer":
        return load_scorer(source(name))
    policy = load_policy(source(name))
    return SharedActorCritic(policy, seed=5) if role == "shared" else policy


def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(61, (length,), generator=generator) for length in (9, 14, 5)]
    return collate_sequences(tokens, [torch.arange(len(one)) >= 3 for one in tokens])


def loss_of(model: nn.Module, role: str) -> Tensor:
    if role == "scorer":
        return sequence_scores(model, batch()).square().sum()
    if role == "policy":
        return token_logprobs(model, batch()).logprobs.sum()
    outputs = shared_outputs(model, batch())
    return outputs.logprobs.sum() + outputs.values.square().sum()


def pairs() -> DeviceMesh:
    """Ranks 0 and 1, and ranks 2 and 3, share a copy each."""
    return DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("data", "tensor"))


def whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def differences(name: str, role: str, *, passes: int = 1, checkpointing: bool = False) -> Any:
    """Relative differences from one process: of the loss, and the largest of a gradient."""
    alone, cut = built(name, role), built(name, role)
    tensor_parallelise(cut, pairs()["tensor"])
    if checkpointing:
        enable_gradient_checkpointing(cut)
    losses = []
    for model in (alone, cut):
        for _ in range(passes):
            loss = loss_of(model, role)
            loss.backward()
        losses.append(loss.item())
    gradients = []
    named = zip(alone.named_parameters(), cut.named_parameters(), strict=True)
    for (name_alone, one), (name_cut, other) in named:
        assert name_alone == name_cut
        difference = (whole(one.grad) - whole(other.grad)).abs().max()
        gradients.append((difference / whole(one.grad).abs().max().clamp(min=1e-9)).item())
    return [abs(losses[1] / losses[0] - 1), max(gradients)]


def sharded_as_well() -> float:
    """The largest relative difference of a gradient when FSDP shards the parts over replicas."""
    alone, cut, mesh = built("qwen3", "policy"), built("qwen3", "policy"), pairs()
    tensor_parallelise(cut, mesh["tensor"])
    for module in (*cut.model.layers, cut):
        fully_shard(module, mesh=mesh["data"])
    for model in (alone, cut):
        # Both replicas have the same data, and FSDP takes their mean.
        model(batch().tokens).logits.log_softmax(-1)[..., 3].sum().backward()
    differences = [
        (whole(one.grad) - whole(other.grad)).abs().max() / whole(one.grad).abs().max()
        for one, other in zip(alone.parameters(), cut.parameters(), strict=True)
    ]
    assert all(parameter.is_leaf for parameter in cut.parameters())  # an optimiser takes no other
    return max(differences).item()


def parts_and_gradients_here() -> Any:
    """How many elements lie here, and a fingerprint of every whole parameter's gradient."""
    model = built("qwen3", "policy")
    num_whole = sum(one.numel() for one in model.model.layers.parameters())
    tensor_parallelise(model, pairs()["tensor"])
    loss_of(model, "policy").backward()
    local = [
        one.to_local() if isinstance(one, DTensor) else one
        for one in model.model.layers.parameters()
    ]
    storage = sum(one.untyped_storage().nbytes() // 8 for one in local)
    fingerprints = {
        name: whole(one.grad).double().sum().item().hex()
        for name, one in model.named_parameters()
        if not isinstance(one, DTensor)
    }
    return {"share": storage / num_whole, "fingerprints": fingerprints}


def without_gradients(name: str) -> float:
    alone, cut = built(name, "policy"), built(name, "policy")
    tensor_parallelise(cut, pairs()["tensor"])
    with torch.inference_mode():
        return (alone(batch().tokens).logits - cut(batch().tokens).logits).abs().max().item()


def cut_on_the_meta_device() -> list[list[int]]:
    with torch.device("meta"):
        model = type(built("llama", "policy"))(built("llama", "policy").config)
    tensor_parallelise(model, pairs()["tensor"])
    attention = model.to_empty(device="cpu").model.layers[1].self_attn
    return [list(part.weight.to_local().shape) for part in (attention.q_proj, attention.o_proj)]


def cut_over_all_four() -> str:
    """The model has two key-value heads."""
    model = built("llama", "policy")
    before = {name: type(one).__name__ for name, one in model.named_parameters()}
    try:
        tensor_parallelise(model, DeviceMesh("cpu", list(range(dist.get_world_size()))))
    except ConfigError as error:
        assert before == {name: type(one).__name__ for name, one in model.named_parameters()}
        return str(error)
    return "no error"


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_every_gradient_are_those_of_one_process(process_pool: ProcessPool, name: str):
    role = ROLES[list(MODELS).index(name) % len(ROLES)]
    for found in process_pool.run(differences, name=name, role=role):
        assert max(found) < 1e-12


@pytest.mark.parametrize("role", ROLES)
def test_each_kind_of_model_is_cut_and_gradients_add_up(process_pool: ProcessPool, role: str):
    for found in process_pool.run(differences, name="qwen3", role=role, passes=2):
        assert max(found) < 1e-12


def test_layers_may_compute_their_activations_twice(process_pool: ProcessPool):
    found = process_pool.run(differences, name="qwen3", role="policy", checkpointing=True)
    assert max(max(one) for one in found) < 1e-12


def test_whole_parameters_get_the_same_gradient_and_the_cut_ones_half_the_memory(
    process_pool: ProcessPool,
):
    found = process_pool.run(parts_and_gradients_here)
    assert len(found[0]["fingerprints"]) == 2 + 4 * 2  # embeddings, last norm; four norms a layer
    assert found[0]["fingerprints"] == found[1]["fingerprints"]
    assert 0.5 < found[0]["share"] < 0.52


def test_parts_can_be_sharded_over_replicas_as_well(process_pool: ProcessPool):
    assert max(process_pool.run(sharded_as_well)) < 1e-12


@pytest.mark.parametrize("name", MODELS)
def test_logits_without_gradients(process_pool: ProcessPool, name: str):
    assert max(process_pool.run(without_gradients, name=name)) < 1e-12


def test_a_model_without_memory_can_be_cut(process_pool: ProcessPool):
    assert process_pool.run(cut_on_the_meta_device)[3] == [[16, 32], [32, 16]]


def test_a_degree_that_divides_no_heads_is_refused_before_anything_changes(
    process_pool: ProcessPool,
):
    (message,) = set(process_pool.run(cut_over_all_four))
    assert (
        "tensor_parallel = 4 does not divide the model's 4 attention heads, 2 key-value" in message
    )
    assert "smaller degrees that do: 1, 2." in message


def test_a_fused_projection_is_refused_by_family():
    sizes = {"vocab_size": 61, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 16}
    model = load_policy(ModelSource(architecture={"model_type": "gpt2", **sizes}))
    with pytest.raises(ConfigError, match="gpt2 models cannot be cut by heads"):
        check_tensor_parallel(model, 2)
