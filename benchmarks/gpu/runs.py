"""Whole PPO runs with four models: on one device, and as two groups of workers that share it.

Each device's runs are made in a process of their own, so that those of the CPU see no GPU. Two
workers on one GPU are a layout for tests: their collectives and weights go through host memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from agreement import Agreement
from piped_processes import PipedProcesses
from piped_workers import launch_piped
from run_differences import EXACT, ROUNDED, compare, seconds

from flexrlhf.config.loading import load_config
from flexrlhf.config.resolution import resolve, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.names import Role
from flexrlhf.learning.models.loading import load_tokenizer
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.runtime.datasets import RunData, load_data
from flexrlhf.runtime.devices.work_order import DeviceKind
from flexrlhf.runtime.launch import launch
from flexrlhf.runtime.loop import Launched, TrainingRun
from flexrlhf.runtime.ray_cluster.ray_launch import work_order
from flexrlhf.runtime.reward_role import reward_functions
from flexrlhf.runtime.stages import SilentListener

_WORKERS: Final = Path(__file__).parents[2] / "examples" / "workers"
_TRAINED: Final[tuple[Role, ...]] = ("actor", "critic")
_SERVED: Final[tuple[Role, ...]] = ("shadow_actor", "shadow_critic", "reference", "reward")
_LAYOUTS: Final = ("colocated", "disaggregated")
_KINDS: Final = {
    "float64": {"dtype": "float64", "precision": "float32"},
    "float32": {"dtype": "float32", "precision": "float32"},
    "bfloat16": {"dtype": "float32", "precision": "bfloat16"},
}
"""Type of the weights, and of what passes compute with."""
_LARGER: Final = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
"""What is timed on a GPU: about 23 million parameters a role."""
_CPU_S: Final = 120.0


def main() -> int:
    """Makes all runs and compares them with those of one process on the CPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--reference", type=Path, help="make the CPU's runs in this folder")
    options = parser.parse_args()
    if options.reference is not None:
        for kind in ("float64", "float32"):
            _colocated(kind, options.reference)
        return 0
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        return _compared(options.device, Path(name))


def _compared(device: DeviceKind, folder: Path) -> int:
    reference = folder / "reference"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, "--device", "cpu", "--reference", str(reference)]
    subprocess.run(command, env=environment, timeout=_CPU_S, check=True)
    for kind in ("float64", "float32"):
        print(f"  colocated on cpu, {kind}: {seconds(reference / f'colocated-{kind}')}")
    _all_runs(device, folder)
    agreement = Agreement()
    wide = EXACT if device == "cpu" else ROUNDED
    for kind, limits in (("float64", wide), ("float32", ROUNDED)):
        for layout in _LAYOUTS:
            name = f"{layout} on {device}, {kind}"
            expected = reference / f"colocated-{kind}"
            compare(agreement, name, folder / f"{layout}-{kind}", expected, limits)
    return int(agreement.failed)


def _all_runs(device: DeviceKind, folder: Path) -> None:
    """Makes the runs of both layouts on a device and prints their times."""
    kinds = [*_KINDS, *(f"{kind}, larger" for kind in ("float32", "bfloat16") if device == "cuda")]
    for kind in kinds:
        run = _colocated(kind, folder)
        print(f"  colocated on {device}, {kind}: {seconds(run)}", flush=True)
    print("  two groups of workers on one device, through host memory (a layout for tests):")
    processes = PipedProcesses(2)
    try:
        for kind in kinds:
            run = _disaggregated(kind, folder, device, processes)
            print(f"  disaggregated on {device}, {kind}: {seconds(run)}", flush=True)
    finally:
        processes.close()


def _colocated(kind: str, folder: Path) -> Path:
    """Trains in this process, on the GPU if it sees one, and returns the run's folder."""
    config = _config(kind)
    launched = launch(config, _data(config))
    return _trained(launched, one_device_plan(spec_of(config)), folder / f"colocated-{kind}")


def _disaggregated(kind: str, folder: Path, device: DeviceKind, processes: PipedProcesses) -> Path:
    """Trains with one worker that trains and one that generates and scores."""
    config = _config(kind)
    placement: dict[Role, RolePlacement] = {
        role: RolePlacement((number,))
        for number, roles in enumerate((_TRAINED, _SERVED))
        for role in roles
    }
    plan = Plan(1, "disaggregated", feasible=True, why="", placement=placement)
    order = work_order(config, plan, _data(config), device=device)
    return _trained(launch_piped(order, processes), plan, folder / f"disaggregated-{kind}")


def _trained(launched: Launched, plan: Plan, folder: Path) -> Path:
    folder.mkdir(parents=True)
    training = TrainingRun(folder.name, folder, launched, plan)
    try:
        training.train(SilentListener())
    finally:
        training.close()
    return folder


def _config(kind: str) -> RunConfig:
    """Returns the example of four workers as a short run of one kind, without its cluster."""
    name, _, size = kind.partition(", ")
    kinds = _KINDS[name]
    overrides = [
        "cluster=auto",
        "training.iterations=3",
        "training.prompts_per_iteration=8",
        "training.mini_batch_samples=16",
        "training.micro_batch_tokens=128",
        f"training.precision={kinds['precision']}",
        "reward.model_weight=1.0",
        "rollout.micro_batches=2",
        "run.trackers=[]",
        "run.recorded_samples=1000",
        "run.task_deadline_s=60",
        *(f"model.{role}.dtype={kinds['dtype']}" for role in ("actor", "reward")),
    ]
    if size:
        overrides.append("training.micro_batch_tokens=auto")  # found by a dry step
        overrides += [
            f"model.{role}.architecture.{key}={value}"
            for role in ("actor", "reward")
            for key, value in _LARGER.items()
        ]
    return resolve(load_config(_WORKERS / "ppo.yaml", overrides))


def _data(config: RunConfig) -> RunData:
    tokenizer = load_tokenizer(str(_WORKERS / "tokenizer"))
    return load_data(config.data, spec_of(config).data, tokenizer, reward_functions(config.reward))


if __name__ == "__main__":
    sys.exit(main())
