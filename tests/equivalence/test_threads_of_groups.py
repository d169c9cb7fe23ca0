"""Worker processes that serve one run after another keep no thread of a run that has ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from placed_runs import PlacedRuns

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are read in /proc"),
]

KINDS = ({"zero_stage": 3}, {"tensor_parallel": 2}, {"zero_stage": 1})
"""What cuts the actor and the critic: FSDP and DTensor keep caches of their own."""


def _threads(process: int) -> int:
    names = [file.read_text() for file in Path(f"/proc/{process}/task").glob("*/comm")]
    return sum("gloo" in name for name in names)


def test_threads_of_process_groups_end_with_their_run(placed_runs: PlacedRuns):
    counts: list[tuple[int, ...]] = []
    for _ in range(2):
        for kind in KINDS:
            roles = {"actor": kind, "critic": kind}
            placement = {"strategy": "colocated", "roles": roles}
            config, plan = placed_runs.plan(
                "ppo", 2, iterations=1, changes={"placement": placement}
            )
            placed_runs.on_workers(config, plan)
            members = placed_runs.processes.members
            counts.append(tuple(_threads(member.process_id) for member in members))
    first, second = counts[: len(KINDS)], counts[len(KINDS) :]
    assert all(sum(count) > 0 for count in counts)
    assert second == first
