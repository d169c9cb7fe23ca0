"""The weights of a pipeline reach models that are whole, cut by heads or into other stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from process_pool import ProcessPool
from role_cases import NUM_STEPS, SPLITS, alone, farthest, make_model, mesh_of, split_trainer, train
from safetensors.torch import load_file, save_file

from flexrlhf.learning.models.parallelise import ParallelModel, parallelise
from flexrlhf.learning.models.role_mesh import ShardDegrees
from flexrlhf.learning.models.shards import Shard, whole_shards
from flexrlhf.learning.transport.fetching import close_idle_connections, fetch
from flexrlhf.learning.transport.server import ParcelServer
from flexrlhf.learning.weights.pieces import PREFIX
from flexrlhf.learning.weights.pulling import pull
from flexrlhf.learning.weights.store import WeightStore

SECRET = "between us"
TARGETS: dict[str, dict[str, Any]] = {
    "cut by heads": {"tensor": 2},
    "other stages": {"pipeline": 2, "data": 2},
    "sharded": {"data": 4, "zero_stage": 3},
}


def ask(address: str, key: str, query: Any) -> Any:
    return fetch(address, SECRET, key, query, deadline_s=20.0)


def publish_and_pull(kind: str, split: str, *, tied: bool, weights: str) -> dict[str, Any] | None:
    """Trains a pipeline of four layers, publishes its weights, and pulls them for every target."""
    made = split_trainer(kind, "llama", SPLITS[split], layers=4, tied=tied)
    assert made is not None, "the pipelines of these tests take every rank"
    trainer, parallel = made
    train(trainer, num_steps=NUM_STEPS)
    store, server = WeightStore(), ParcelServer(None, SECRET)
    store.publish("actor", 1, parallel.shards())
    server.offer(PREFIX, store.handle)
    assert parallel.mesh is not None
    sources = parallel.mesh.gather(server.address)

    def pulled(targets: dict[str, Shard]) -> None:
        pull("actor", 1, targets, sources, ask).install()

    expected = load_file(weights)
    errors = {"whole": _whole_error(kind, pulled, expected, tied=tied)}
    for name, degrees in TARGETS.items():
        mesh = mesh_of(tuple(range(ShardDegrees(**degrees).size)), ShardDegrees(**degrees))
        if mesh.is_member:
            other = make_model(kind, seed=5, layers=4, tied=tied)
            target = parallelise(other, mesh, trains=False)
            pulled(target.shards())
            target.weights_changed()
            errors[name] = farthest(target, expected)["error"]
    dist.barrier(parallel.mesh.group)  # nobody asks any more
    close_idle_connections()
    server.close()
    return errors


def _whole_error(kind: str, pulled: Any, expected: dict[str, torch.Tensor], *, tied: bool) -> float:
    whole = make_model(kind, seed=5, layers=4, tied=tied)
    pulled(whole_shards(whole))
    return farthest(ParallelModel(whole), expected)["error"]


@pytest.mark.parametrize(
    ("kind", "split", "tied"),
    [("policy", "pp4", True), ("shared", "pp2 x zero1", True), ("policy", "pp2 x tp2", False)],
)
def test_weights_of_a_pipeline_become_any_other_layout(
    process_pool: ProcessPool, tmp_path: Path, kind: str, split: str, tied: bool
):
    _, weights = alone(kind, "llama", layers=4, tied=tied)
    file = tmp_path / "weights.safetensors"
    save_file({name: tensor.clone() for name, tensor in weights.items()}, file)
    results = process_pool.run(
        publish_and_pull, kind=kind, split=split, tied=tied, weights=str(file)
    )
    assert results[0].keys() == {"whole", *TARGETS}
    assert max(error for errors in results for error in errors.values()) < 1e-9
