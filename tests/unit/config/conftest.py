"""Documents that the tests of the config start from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Document = dict[str, Any]

PPO: Document = {
    "algorithm": {"name": "ppo"},
    "model": {"actor": {"path": "models/actor"}, "reward": {"path": "models/reward"}},
    "data": {"prompts": {"path": "data/prompts.jsonl"}},
}
STAGES: Document = {
    "run": {"seed": 3},
    "training": {"iterations": 7},
    "stages": [
        {
            "name": "sft",
            "algorithm": {"name": "sft"},
            "model": {"actor": {"path": "models/actor"}},
            "data": {"supervised": {"path": "data/answers.jsonl"}},
        },
        {
            "name": "rm",
            "algorithm": {"name": "reward_model"},
            "model": {"reward": {"path": "stage:sft/actor"}},
            "data": {"preferences": {"path": "data/pairs.jsonl"}},
        },
        {
            "name": "ppo",
            "algorithm": {"name": "ppo"},
            "model": {"actor": {"path": "stage:sft/actor"}, "reward": {"path": "stage:rm/reward"}},
            "data": {"prompts": {"path": "data/prompts.jsonl"}},
            "training": {"iterations": 2},
        },
    ],
}


@pytest.fixture
def ppo() -> Document:
    return copy.deepcopy(PPO)


@pytest.fixture
def grpo() -> Document:
    return {
        "algorithm": {"name": "grpo"},
        "model": {"actor": {"path": "models/actor"}},
        "data": {"prompts": {"path": "reasoning_gym:chain_sum"}},
        "reward": {"functions": [{"name": "reasoning_gym"}]},
    }


@pytest.fixture
def stages() -> Document:
    return copy.deepcopy(STAGES)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    def write_document(document: Any) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        return path

    return write_document
