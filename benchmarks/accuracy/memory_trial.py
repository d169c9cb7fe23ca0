"""Trains for two iterations with a given batch, on two processes that may hold so many bytes."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from placement_jobs import write_files

from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.errors import FlexError
from flexrlhf.learning.models.loading import load_tokenizer
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.runtime.datasets import load_data
from flexrlhf.runtime.loop import TrainingRun
from flexrlhf.runtime.ray_cluster.processes import RayProcesses
from flexrlhf.runtime.ray_cluster.ray_launch import launch_on_ray
from flexrlhf.runtime.reward_role import reward_functions
from flexrlhf.runtime.stages import SilentListener

WORKERS: Final = 2
ITERATIONS: Final = 2
_STACK_BYTES: Final = 1 << 18
"""Of each new thread: the system counts stacks as held, used or not, and usual ones are large."""
_NO_MEMORY: Final = (
    "can't allocate memory",
    "bad_alloc",
    "MemoryError",
    "Cannot allocate",
    "ended",
)
"""What is read where a process may hold no more: torch, C++, Python, the system, and a process
that took it badly."""


class MemoryTrial:
    """A job of four models, the frozen ones much larger than those that are trained."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.finished_iterations = 0
        """Of the last batch that was tried."""
        write_files(folder)
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(
            resource.RLIMIT_STACK, (_STACK_BYTES, hard)
        )  # Ray's processes inherit it

    def config(self, batch: int, cluster: Mapping[str, Any]) -> RunConfig:
        """Returns the config with so many samples per worker, all in one pass."""
        return resolve(build_config(_document(self._folder, batch, cluster)))

    def fits(self, plan: Plan, batch: int, memory_bytes: float) -> bool:
        """Says whether a placement trains with a batch where each process may hold so many bytes.

        That includes writing the trained models at the end.

        Args:
            plan: of `WORKERS` processes.
            batch: samples per worker and pass.
            memory_bytes: of a process, libraries and all.
        """
        config = self.config(batch, {"workers": WORKERS})
        self.finished_iterations = 0
        processes = RayProcesses()
        try:
            processes.start([WORKERS])
            for member in processes.members:
                _limit(member.process_id, memory_bytes)
            self._train(config, plan, processes)
        except FlexError as error:
            if any(words in str(error) for words in _NO_MEMORY):
                return False
            raise
        finally:
            processes.close()
        return True

    def _train(self, config: RunConfig, plan: Plan, processes: RayProcesses) -> None:
        tokenizer = load_tokenizer(str(self._folder / "tokenizer"))
        rewards = reward_functions(config.reward)
        data = load_data(config.data, spec_of(config).data, tokenizer, rewards)
        launched = launch_on_ray(config, plan, data, processes)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        run = TrainingRun("memory", folder, launched, plan)
        try:
            run.train(SilentListener())
        finally:
            run.close()
            metrics = folder / "metrics.jsonl"
            if metrics.is_file():
                self.finished_iterations = len(metrics.read_text("utf-8").splitlines())


def _limit(process: int, memory_bytes: float) -> None:
    """Lets a process add what it does not hold yet, in data of its own: heap, maps, stacks."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    held = {key: value for key, _, value in (line.partition(":") for line in lines)}
    data, resident = (1024 * int(held[key].split()[0]) for key in ("VmData", "VmRSS"))
    limit = data + max(0, round(memory_bytes) - resident)
    resource.prlimit(process, resource.RLIMIT_DATA, (limit, limit))


def _document(folder: Path, batch: int, cluster: Mapping[str, Any]) -> dict[str, Any]:
    trained = _model(192, 4) | {"tokenizer": str(folder / "tokenizer")}
    samples = WORKERS * batch
    return {
        "algorithm": {"name": "ppo"},
        "model": {
            "actor": trained,
            "critic": _model(192, 4),
            "reference": _model(256, 24),
            "reward": _model(256, 24),
        },
        "data": {"prompts": {"path": str(folder / "prompts.jsonl")}, "max_prompt_tokens": 24},
        "rollout": {"max_new_tokens": 40, "min_new_tokens": 40, "samples_per_prompt": 1},
        "training": {
            "iterations": ITERATIONS,
            "prompts_per_iteration": samples,
            "mini_batch_samples": samples,
            "micro_batch_samples": batch,
        },
        "run": {"seed": 1, "trackers": [], "checkpoint_every": 1000},
        "cluster": dict(cluster),
    }


def _model(width: int, layers: int) -> dict[str, Any]:
    architecture = {
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": width,
        "intermediate_size": 8 * width // 3 // 8 * 8,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "num_key_value_heads": width // 64,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    return {"init": "random", "architecture": architecture}
