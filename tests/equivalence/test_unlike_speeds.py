"""Workers of unlike speed, which share the work by it, against one device, in float64."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from cpu_quota import cpu_quota
from placed_runs import PlacedRuns
from run_differences import differences

from flexrlhf.config.resolution import spec_of
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.runtime.devices.device_map import DeviceMap

pytestmark = [pytest.mark.ray, pytest.mark.full, pytest.mark.timeout(600)]

SLOW = 1
PART = 0.1
PAIR = {"actor": [0, 1], "critic": [0, 1], "reference": [0, 1], "reward": [0, 1]}
APART = {
    **{"actor": [2], "critic": [2], "shadow_actor": [0, 1]},
    **{"shadow_critic": [0, 1], "reference": [0, 1], "reward": [0, 1]},
}


def sections(devices: dict[str, list[int]]) -> dict[str, Any]:
    """Replicas on the first two workers, which share by speed."""
    strategy = "disaggregated" if "shadow_actor" in devices else "colocated"
    placement = {"strategy": strategy, "devices": devices, "balance": "speed"}
    return {"placement": {**placement, "roles": {r: {"tensor_parallel": 1} for r in devices}}}


@pytest.fixture
def slow_worker(placed_runs: PlacedRuns) -> Iterator[None]:
    """The second worker has a tenth of a core."""
    placed_runs.processes.start([4])
    process = placed_runs.processes.members[SLOW].process_id
    try:
        with cpu_quota([process], PART):
            yield
    except PermissionError as error:
        pytest.skip(f"only root may give processes a part of a core: {error}")


def speeds(messages: list[str]) -> tuple[float, ...]:
    """Returns the speeds that a launch has measured."""
    (said,) = (m for m in messages if m.startswith("speeds of the workers: "))
    return tuple(map(float, re.findall(r"\d+\.\d+", said)))


@pytest.mark.parametrize("devices", [PAIR, APART], ids=["colocated", "disaggregated"])
def test_a_slow_worker_gets_less_and_the_run_is_that_of_one_device(
    placed_runs: PlacedRuns, slow_worker, caplog, devices
):
    workers = 1 + max(max(numbers) for numbers in devices.values())
    config, plan = placed_runs.plan("ppo", workers, changes=sections(devices))
    with caplog.at_level(logging.INFO):
        run = placed_runs.on_workers(config, plan)
    measured = speeds(caplog.messages)
    assert measured[SLOW] < 0.75
    assert max(measured) == measured[0] or max(measured) == measured[-1]
    assert scoring_speeds(plan, config, measured)[SLOW] == measured[SLOW]
    found = differences(run.folder, placed_runs.on_one_device("ppo").folder)
    assert found.same_tokens
    assert max(found.metrics, found.weights) < 1e-6, found.at


def scoring_speeds(plan: Plan, config: Any, measured: tuple[float, ...]) -> tuple[float, ...]:
    """Returns what the shares of reward's replicas follow."""
    return DeviceMap(plan, spec_of(config), measured).replica_speeds("reward")
