"""Tiny runs whose engine keeps prefixes learn the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from placed_runs import PlacedRuns
from run_differences import rows
from tiny_runs import WORDS, tiny_config, tiny_data, write_files

from flexrlhf.config.resolution import spec_of
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.runtime.launch import launch

NOT_OF_THE_RUN = ("time/", "throughput/", "memory/", "utilization/", "share/")
READ = "prompt_tokens/read_fraction"


def metrics_of(folder: Path, variant: str, name: str, **rollout: Any) -> list[dict[str, float]]:
    """Trains in `folder`/`name`, and returns its metrics."""
    sections = {"rollout": rollout, "data": {"max_prompt_tokens": 24}}
    config = tiny_config(folder, variant, changes=sections)
    launched = launch(config, tiny_data(config, folder))
    run = PlacedRuns._trained(launched, one_device_plan(spec_of(config)), folder / name)
    return [
        {key: value for key, value in row.items() if not key.startswith(NOT_OF_THE_RUN)}
        for row in rows(run.folder / "metrics.jsonl")
        if row["iteration"] > 0
    ]


@pytest.mark.parametrize("variant", ["ppo", "grpo"])
def test_what_is_learnt_is_the_same_and_less_is_read(tmp_path: Path, variant: str) -> None:
    write_files(tmp_path)
    path = tmp_path / "prompts.jsonl"
    prompts = [json.loads(line) for line in path.read_text().splitlines()]
    begin = " ".join(WORDS[2 + place % 7] for place in range(18))
    longer = [{"prompt": f"{begin} {row['prompt']}"} for row in prompts]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in longer))
    plain = metrics_of(tmp_path, variant, "plain")
    keeping = metrics_of(tmp_path, variant, "keeping", kept_prefix_tokens=1024)
    for without, row in zip(plain, keeping, strict=True):
        assert 0 < row[READ] < 0.9
        assert row.keys() - without.keys() == {READ}
        for key, value in without.items():
            assert row[key] == pytest.approx(value, rel=1e-9, abs=1e-11), key
