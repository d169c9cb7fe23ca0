"""Every process of a role saves what is its own, and the role goes on from it as if unbroken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from process_pool import ProcessPool
from role_cases import SPLITS, alone, error_of, farthest, split_trainer, train
from safetensors.torch import load_file, save_file


def resume_split(
    kind: str, degrees: dict[str, Any], *, folder: str, weights: str
) -> dict[str, Any] | None:
    """Trains two steps, saves, loads into a role of other weights, and trains one more."""
    made = split_trainer(kind, "llama", degrees)
    if made is None:
        return None
    trainer, parallel = made
    first = train(trainer, num_steps=2)
    trainer.backend.save_shard(Path(folder))
    dist.barrier(parallel.mesh and parallel.mesh.group)
    restored, parts = split_trainer(kind, "llama", degrees, seed=9) or made
    train(restored, num_steps=1)  # what it held before must not show
    restored.backend.load_shard(Path(folder))
    ours = restored.backend, trainer.backend
    same = all(
        torch.equal(part.tensor, parallel.shards()[name].tensor)
        for name, part in parts.shards().items()
    )
    metrics = [train(one, num_steps=1, first_step=2) for one in (trainer, restored)]
    files = sorted(path.name for path in Path(folder).iterdir())
    other, _ = split_trainer(kind, "llama", degrees, seed=9) or made
    refused = error_of(lambda: other.backend.load_shard(Path(folder, "absent")))
    return {
        "same": same and ours[0].optimizer_bytes() == ours[1].optimizer_bytes(),
        "metrics": [*first, *metrics[0]],
        "restored": [*first, *metrics[1]],
        "files": files,
        "refused": refused,
        **farthest(parts, load_file(weights)),
    }


FILES = {
    "zero0": ["0-0"],
    "hybrid zero1": ["0-0", "0-1"],
    "zero3": ["0-0", "0-1"],
    "tp2 x zero0": ["0-0", "1-0"],
    "tp2 x zero3": ["0-0", "0-1", "1-0", "1-1"],
    "pp2 x zero1": ["0-0-0", "0-0-1", "0-1-0", "0-1-1"],
    "pp2 x tp2": ["0-0-0", "0-0-1", "1-0-0", "1-0-1"],
}
WEIGHTS = {"hybrid zero1": ["0-0"], "pp2 x zero1": ["0-0-0", "0-0-1"]}
"""Files of weights where replicas share them, but not the optimiser's state."""


@pytest.mark.parametrize("split", FILES)
def test_what_each_process_saved_comes_back_bit_for_bit(
    process_pool: ProcessPool, tmp_path: Path, split: str
):
    metrics, weights = alone("shared", "llama")
    file = tmp_path / "weights.safetensors"
    save_file({name: tensor.clone() for name, tensor in weights.items()}, file)
    folder = tmp_path / "actor"
    results = process_pool.run(
        resume_split, kind="shared", degrees=SPLITS[split], folder=str(folder), weights=str(file)
    )
    owned = FILES[split]
    weights_owned = WEIGHTS.get(split, owned)
    expected = [f"optimizer-{one}.{kind}" for one in owned for kind in ("json", "safetensors")]
    expected += [
        f"weights-{one}.{kind}" for one in weights_owned for kind in ("json", "safetensors")
    ]
    for result in filter(None, results):
        assert result["same"]
        assert result["restored"] == result["metrics"]
        assert result["error"] < 1e-9
        assert result["files"] == expected
        assert "cannot be loaded" in result["refused"]
        for ours, theirs in zip(result["metrics"], metrics, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)


def load_other_layout(folder: str) -> list[str]:
    """Saves as ZeRO-1 over two replicas and loads as ZeRO-3; returns what is said of it."""
    said = []
    for degrees in ({"data": 2, "zero_stage": 1}, {"data": 2, "zero_stage": 3}):
        made = split_trainer("policy", "llama", degrees)
        if made is not None and not said:
            made[0].backend.save_shard(Path(folder))
            dist.barrier(made[1].mesh and made[1].mesh.group)
            said.append("saved")
        elif made is not None:
            names = ["weights", "optimizer"]
            for name in names if dist.get_rank() == 0 else []:
                for kind in ("json", "safetensors"):
                    source = Path(folder, f"{name}-0-0.{kind}")
                    source.with_name(f"{name}-0-1.{kind}").write_bytes(source.read_bytes())
            dist.barrier(made[1].mesh and made[1].mesh.group)
            said.append(error_of(lambda made=made: made[0].backend.load_shard(Path(folder))))
    return said


def test_a_shard_of_another_layout_is_refused(process_pool: ProcessPool, tmp_path: Path):
    for said in process_pool.run(load_other_layout, folder=str(tmp_path))[:2]:
        assert "split otherwise" in said[1]
