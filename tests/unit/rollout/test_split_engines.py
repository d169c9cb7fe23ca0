"""Engines over models that are split over processes say what one process says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from process_pool import ProcessPool
from torch import nn
from torch.distributed.tensor import DTensor

from flexrlhf.core.errors import FlexError
from flexrlhf.core.shard_layout import Box
from flexrlhf.learning.models.heads import SharedActorCritic
from flexrlhf.learning.models.parallelise import ParallelModel, parallelise
from flexrlhf.learning.models.role_mesh import RoleMesh, ShardDegrees
from flexrlhf.learning.rollout.actor_copy import empty_copy
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.kv_cache import KVCache
from flexrlhf.learning.rollout.protocol import Request, Sampling

FAMILIES = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {},
    "qwen3": {"head_dim": 8, "tie_word_embeddings": True},
}
SAMPLING = Sampling(max_new_tokens=9, end_tokens=(1, 2, 3), seed=4, top_p=0.95)
REQUESTS = [
    Request((5, 6, 7), (40, 41, 42)),
    Request((8,), (44, 45)),
    Request((9, 4, 4, 10, 11), (48,)),
    Request((20, 21), (50, 51)),
]


def tiny(family: str, seed: int = 0) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 29,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "initializer_range": 0.5,
    }
    options = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**sizes, **options, **FAMILIES[family]})
    return AutoModelForCausalLM.from_config(config).double()


def split(model: nn.Module, *, trains: bool = False, **degrees: int) -> ParallelModel:
    mesh = RoleMesh.create(range(dist.get_world_size()), ShardDegrees(**degrees))
    return parallelise(model, mesh, trains=trains)


def said(answers: Any) -> Any:
    """Tokens and log-probs, by sample id, as JSON keeps them."""
    return {str(one.sample_id): [list(one.tokens), list(one.logprobs)] for one in answers}


def agree(found: Any, expected: Any) -> bool:
    return found.keys() == expected.keys() and all(
        found[key][0] == expected[key][0] and found[key][1] == pytest.approx(expected[key][1])
        for key in expected
    )


def alone(family: str, requests: Any = REQUESTS) -> Any:
    return said(build_engine("native", tiny(family)).generate(requests, SAMPLING))


def cut_by_heads(family: str, engine: str) -> Any:
    model = split(tiny(family), tensor=2, data=2)
    heads = []
    write = KVCache.write

    def counting(cache: KVCache, layer: int, keys: Any, values: Any) -> None:
        heads.append(keys.shape[1])
        write(cache, layer, keys, values)

    KVCache.write = counting
    try:
        answers = build_engine(engine, model, max_sequences=5).generate(REQUESTS, SAMPLING)
    finally:
        KVCache.write = write
    return {"answers": said(answers), "heads": sorted(set(heads))}


def sharded(
    family: str, zero_stage: int, tensor: int, *, per_token: bool, engine: str = "native"
) -> Any:
    """Each replica answers other requests, and the last one none at all."""
    model = split(
        tiny(family), trains=zero_stage == 2, tensor=tensor, data=4 // tensor, zero_stage=zero_stage
    )
    largest = [0]

    def watch(*_: object) -> None:
        here = [
            parameter
            for parameter in model.module.model.layers.parameters()
            if not isinstance(parameter, DTensor)
        ]
        largest[0] = max(largest[0], sum(one.numel() for one in here))

    model.module.model.layers[1].register_forward_pre_hook(watch)
    generator = build_engine(engine, model, max_sequences=2, gathers_per_token=per_token)
    replica = dist.get_rank() // tensor
    mine = REQUESTS[replica * 2 : replica * 2 + 2] if replica < 2 else []
    answers = generator.generate(mine, SAMPLING)
    again = generator.generate(mine, SAMPLING)
    assert answers == again
    is_apart = all(isinstance(one, DTensor) for one in model.module.model.layers.parameters())
    return {
        "answers": said(answers),
        "engine": generator.capabilities.name,
        "is_collective": generator.capabilities.is_collective,
        "largest": largest[0],
        "is_apart": is_apart,
    }


def one_prompt_is_bad() -> str:
    model = split(tiny("llama"), data=4, zero_stage=3)
    engine = build_engine("native", model, gathers_per_token=True)
    is_bad = dist.get_rank() == 1
    try:
        engine.generate([Request((5, 99 if is_bad else 6), (dist.get_rank(),))], SAMPLING)
    except FlexError as error:
        return str(error)
    return "no error"


def trained_between(per_token: bool) -> Any:
    """Gradients flow after a generation, and a step is seen by the next one."""
    model = split(tiny("llama"), trains=True, data=4, zero_stage=3)
    engine = build_engine("native", model, gathers_per_token=per_token)
    engine.generate(REQUESTS, SAMPLING)
    tokens = torch.tensor([[5, 6, 7, 8]])
    loss = model.run(lambda module: module(tokens).logits.log_softmax(-1)[..., 3].sum())
    loss.backward()
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.01)
    optimizer.step()
    model.weights_changed()
    engine.load_weights((), version=1)
    return said(engine.generate(REQUESTS, SAMPLING))


def trained_alone() -> Any:
    model = tiny("llama")
    tokens = torch.tensor([[5, 6, 7, 8]])
    # Four replicas add up the same gradient.
    (4 * model(tokens).logits.log_softmax(-1)[..., 3].sum()).backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    return said(build_engine("native", model).generate(REQUESTS, SAMPLING))


def filled_copy(*, shared: bool) -> Any:
    """A copy that is cut by heads takes the weights of another model, part by part."""
    actor = tiny("qwen3", seed=0)
    model = SharedActorCritic(actor) if shared else actor
    mesh = RoleMesh.create(range(4), ShardDegrees(tensor=2, data=2))
    copy = empty_copy(model, device=torch.device("cpu"), tensor_mesh=mesh.tensor_mesh)
    engine = build_engine(
        "native", parallelise(copy, mesh, trains=False), shares_weights=False, has_weights=False
    )
    whole = dict(model.state_dict())

    def write() -> None:
        for name, target in engine.targets().items():
            target.tensor.copy_(whole[name][target.box.within(Box.whole(target.shape))])

    engine.install(7, write)
    first = engine.generate(REQUESTS, SAMPLING)
    engine.release_memory(keep_weights=False)
    engine.regain_memory(["weights"])
    engine.load_weights(model.state_dict().items(), version=8)
    engine.regain_memory(["cache"])
    second = engine.generate(REQUESTS, SAMPLING)
    assert said(first) == said(second)
    assert {one.weight_version for one in second} == {8}
    parts = {name: list(target.box.shape) for name, target in engine.targets().items()}
    return {"answers": said(first), "parts": parts}


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_replica_that_is_cut_by_heads_says_the_same_on_every_process(
    process_pool: ProcessPool, family: str, engine: str
):
    expected = alone(family)
    for found in process_pool.run(cut_by_heads, family=family, engine=engine):
        assert agree(found["answers"], expected)
        assert found["heads"] == ([1] if engine == "native" else [])  # of two, one is here


@pytest.mark.parametrize(("zero_stage", "tensor"), [(3, 1), (3, 2), (2, 1)])
@pytest.mark.parametrize("per_token", [False, True])
def test_sharded_weights_are_gathered_and_replicas_without_work_take_part(
    process_pool: ProcessPool, zero_stage: int, tensor: int, per_token: bool
):
    found = process_pool.run(
        sharded, family="qwen3", zero_stage=zero_stage, tensor=tensor, per_token=per_token
    )
    expected = alone("qwen3")
    together = {key: answer for one in found for key, answer in one["answers"].items()}
    assert agree(together, expected)
    for one in found:
        assert one["is_collective"]
        assert one["engine"] == ("transformers" if per_token else "native")


def test_one_layer_at_a_time_is_whole_when_weights_are_gathered_per_token(
    process_pool: ProcessPool,
):
    num_layer = sum(one.numel() for one in tiny("qwen3").model.layers[0].parameters())
    for found in process_pool.run(sharded, family="qwen3", zero_stage=3, tensor=1, per_token=True):
        assert found["largest"] == num_layer
        assert found["is_apart"]


def test_what_is_gathered_once_serves_engines_that_call_whole_layers(process_pool: ProcessPool):
    """Replicas make different numbers of passes, so a pass that gathered would not end."""
    found = process_pool.run(
        sharded, family="qwen2", zero_stage=3, tensor=1, per_token=False, engine="transformers"
    )
    together = {key: answer for one in found for key, answer in one["answers"].items()}
    assert agree(together, alone("qwen2"))
    assert {one["engine"] for one in found} == {"transformers"}
    assert all(one["is_apart"] for one in found)


def test_a_replica_that_fails_takes_the_others_with_it(process_pool: ProcessPool):
    bad, *others = sorted(process_pool.run(one_prompt_is_bad), key=lambda text: "99" not in text)
    assert "token 99" in bad
    assert all("Another replica of the actor failed" in text for text in others)


@pytest.mark.parametrize("per_token", [False, True])
def test_training_goes_on_after_generating(process_pool: ProcessPool, per_token: bool):
    expected = trained_alone()
    for found in process_pool.run(trained_between, per_token=per_token):
        assert agree(found, expected)


@pytest.mark.parametrize("shared", [False, True])
def test_an_empty_copy_is_filled_part_by_part(process_pool: ProcessPool, shared: bool):
    expected = alone("qwen3")
    prefix = "trunk." if shared else ""
    for found in process_pool.run(filled_copy, shared=shared):
        assert agree(found["answers"], expected)
        layer = f"{prefix}model.layers.0"
        assert found["parts"][f"{layer}.self_attn.q_proj.weight"] == [16, 32]
        assert found["parts"][f"{layer}.mlp.down_proj.weight"] == [32, 24]
        assert found["parts"][f"{layer}.self_attn.q_norm.weight"] == [8]
