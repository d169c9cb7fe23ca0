"""No tensor passes the driver: what it sends and hears does not grow with the work."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from placed_runs import PlacedRuns
from tiny_runs import JUDGE, POLICY, tiny_config

pytestmark = pytest.mark.ray

LARGE = {
    "model": {
        role: {"architecture": {**shape, "hidden_size": 64, "intermediate_size": 96}}
        for role, shape in (("actor", POLICY), ("reward", JUDGE))
    },
    "rollout": {"max_new_tokens": 24, "samples_per_prompt": 8},
    "training": {"mini_batch_samples": 16, "micro_batch_tokens": 640},
}
"""Four times the samples, of four times the length, by models of many times the weights; in as many
tasks as before."""


ROLES = ("actor", "critic", "reference", "reward", "shadow_actor", "shadow_critic")
WHOLE = {"tensor_parallel": 1, "zero_stage": 0, "offload": False}
"""Every degree is given, so that the planner has nothing to search."""


@pytest.fixture
def control_bytes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes of calls and reports that pass the driver, by method."""
    from ray import cloudpickle

    from flexrlhf.runtime.ray_cluster.remote_calls import RemoteCalls

    counted: Counter[str] = Counter()
    call, report = RemoteCalls.call, RemoteCalls.report

    def counting_call(self: RemoteCalls, rank: int, method: str, group: str, *arguments: Any):
        counted[method] += len(cloudpickle.dumps(arguments))
        return call(self, rank, method, group, *arguments)

    def counting_report(self: RemoteCalls, rank: int, reference: Any):
        found = report(self, rank, reference)
        counted["report"] += len(cloudpickle.dumps(found))
        return found

    monkeypatch.setattr(RemoteCalls, "call", counting_call)
    monkeypatch.setattr(RemoteCalls, "report", counting_report)
    return counted


def _run(placed_runs: PlacedRuns, changes: dict[str, Any]) -> None:
    pools = {"train": 0.5, "generate": 0.25, "score": 0.25}
    base = tiny_config(placed_runs.folder, "ppo").model_dump(mode="json")
    sections = {
        "run": {"recorded_samples": 0},
        "data": {"evaluation": None},
        "placement": {"pools": pools, "roles": dict.fromkeys(ROLES, WHOLE)},
        **changes,
    }
    if "model" in changes:
        sections["model"] = {
            role: {**base["model"][role], **change} for role, change in changes["model"].items()
        }
    config, plan = placed_runs.plan("ppo", 4, changes=sections)
    assert plan.strategy == "disaggregated"
    placed_runs.on_workers(config, plan)


def test_control_does_not_grow_with_batch_length_or_model(
    placed_runs: PlacedRuns, control_bytes: Counter[str]
):
    _run(placed_runs, {"training": {"micro_batch_tokens": 40}})
    small = Counter(control_bytes)
    control_bytes.clear()
    _run(placed_runs, LARGE)
    for method in ("run", "prefetch", "finish", "ask", "report"):
        assert control_bytes[method] <= 1.02 * small[method], (method, small, control_bytes)
    assert sum(small.values()) > 0
