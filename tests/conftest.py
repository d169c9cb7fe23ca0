"""What tests of every kind may use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from process_pool import ProcessPool

# A busy machine is slow, not wrong; pytest has a deadline of its own.
settings.register_profile("flexrlhf", deadline=None)
settings.load_profile("flexrlhf")

if TYPE_CHECKING:
    from placed_runs import PlacedRuns

    from flexrlhf.runtime.ray_cluster.processes import RayProcesses


@pytest.fixture(scope="session")
def resting_pool() -> Iterator[ProcessPool]:
    """Has torch imported for `process_pool`, and no ranks yet."""
    pool = ProcessPool(4)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def process_pool(resting_pool: ProcessPool) -> Iterator[ProcessPool]:
    """Four processes that form a world; `process_pool.run(function, **arguments)` uses them.

    They end with the tests of a file: the threads of the groups that these made would look for
    messages all through the tests of other files.
    """
    yield resting_pool
    resting_pool.rest()


@pytest.fixture(scope="session")
def ray_processes() -> Iterator[RayProcesses]:
    """Four processes of an own Ray, for any plan on up to four workers."""
    pytest.importorskip("ray")
    from flexrlhf.runtime.ray_cluster.processes import RayProcesses

    processes = RayProcesses()
    processes.start([4])
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def placed_runs(ray_processes: RayProcesses, tmp_path_factory) -> PlacedRuns:
    """Tiny runs on one device and under any plan."""
    from placed_runs import PlacedRuns

    return PlacedRuns(tmp_path_factory.mktemp("placed"), ray_processes)
