"""Run folders as a training run writes them, made of a few lines each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flexrlhf.core.timeline import Span, Timeline, write_trace

CONFIG = {
    "algorithm": {"name": "ppo", "epochs": 2},
    "model": {"actor": {"path": "models/actor"}, "critic": None},
    "data": {"max_prompt_tokens": 64},
    "rollout": {"max_new_tokens": 32, "samples_per_prompt": 4, "gap_alarm": 1e-4},
    "training": {
        "iterations": 3,
        "prompts_per_iteration": 8,
        "mini_batch_samples": 16,
        "micro_batch_tokens": 2048,
    },
}
PLAN = {
    "plans": [
        {
            "rank": 1,
            "strategy": "colocated",
            "placement": {"actor": {"devices": [0], "zero_stage": 0, "offload": False}},
            "why": "One device.",
        }
    ]
}


class RunWriter:
    """Writes run folders under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @staticmethod
    def line(iteration: int, **metrics: float) -> dict[str, float]:
        """Metrics of one PPO iteration; `metrics` replace or add some."""
        return {
            "iteration": iteration,
            "samples": 32,
            "reward/mean": 0.5 * iteration,
            "reward/std": 0.25,
            "kl/mean": 0.01 * iteration,
            "loss/policy": -0.02,
            "loss/value": 0.3,
            "logprob_gap/max": 2e-6,
            "time/generate_s": 1.0,
            "time/score_s": 0.25,
            "time/train_s": 0.5,
            "time/sync_s": 0.0,
            "time/iteration_s": 2.0,
            "share/generate": 0.5,
            "share/communication": 0.0,
            "share/bubble": 0.5,
            "throughput/samples_per_s": 16.0,
            "memory/peak_bytes": 3 * 2**30,
        } | metrics

    @staticmethod
    def sample(iteration: int, prompt: str, response: str, **fields: Any) -> dict[str, Any]:
        """One line of samples.jsonl; `fields` replace some."""
        return {
            "iteration": iteration,
            "kind": "train",
            "sample_id": 7,
            "prompt": prompt,
            "response": response,
            "reward": float(iteration),
            "reward_parts": {"model": 0.5, "length": 0.5},
            "finished": True,
            "response_tokens": 5,
        } | fields

    def write(
        self, name: str, *, metrics: list[dict[str, float]] | None = None, **files: Any
    ) -> Path:
        """Writes config and metrics, and what is given of `samples`, `plan`, `environment`,
        `timelines` and `log`."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(files.get("config", CONFIG)))
        lines = [self.line(i) for i in (1, 2, 3)] if metrics is None else metrics
        write_lines(folder / "metrics.jsonl", lines)
        if "samples" in files:
            write_lines(folder / "samples.jsonl", files["samples"])
        for document in ("plan", "environment"):
            if document in files:
                (folder / f"{document}.json").write_text(json.dumps(files[document]))
        if "timelines" in files:
            write_trace(folder / "timeline.json", files["timelines"])
        if "log" in files:
            (folder / "log.txt").write_text(files["log"])
        return folder

    def write_whole(self) -> Path:
        """Writes a run folder with every file."""
        return self.write(
            "whole",
            plan=PLAN,
            samples=[
                self.sample(1, "Say hello.", "no"),
                self.sample(3, "Say hello.", "hello <script>alert(1)</script>"),
            ],
            timelines={"measured": two_devices()},
            environment={"versions": {"torch": "2.13.0"}, "command": "flexrlhf train run.yaml"},
            log="first\nlast\n",
        )

    def write_staged(self) -> Path:
        """Writes a run of three stages whose names are not in the order of the alphabet."""
        names = ("sft", "rm", "ppo")
        plans = [{"strategy": f"of {n}", "placement": {"actor": {"devices": [0]}}} for n in names]
        folder = self.write(
            "staged",
            metrics=[],
            config={"stages": [{"name": name} for name in names]},
            plan={"plans": plans},
            environment={"threads": 2},
        )
        (folder / "metrics.jsonl").unlink()
        losses = [{"iteration": i, "loss/supervised": 3.0 - i} for i in (1, 2)]
        pairs = [{"iteration": i, "accuracy/preference": 0.4 + 0.2 * i} for i in (1, 2)]
        self.write("staged/stages/sft", config={"algorithm": {"name": "sft"}}, metrics=losses)
        judge = {"algorithm": {"name": "reward_model"}}
        self.write("staged/stages/rm", config=judge, metrics=pairs)
        self.write("staged/stages/ppo")
        return folder


def two_devices(iterations: int = 2) -> Timeline:
    """One device generates; the other scores, trains and sends the weights."""
    timeline = Timeline(["device 0", "device 1"])
    for iteration in range(1, iterations + 1):
        rows = (
            ("generate", "device 0", "generate", "actor", 0.0, 4.0, None),
            ("score", "device 1", "score", "reward", 4.0, 5.0, None),
            ("train", "device 1", "train", "actor", 5.0, 8.0, None),
            ("weights", "device 0", "sync", "actor", 8.0, 8.5, "weights"),
        )
        for name, track, stage, role, begin, end, transfer in rows:
            start_s, end_s = 10.0 * iteration + begin, 10.0 * iteration + end
            timeline.append(Span(name, track, stage, role, start_s, end_s, iteration, transfer))
    return timeline


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def runs(tmp_path: Path) -> RunWriter:
    return RunWriter(tmp_path)


@pytest.fixture
def timeline() -> Timeline:
    return two_devices()
