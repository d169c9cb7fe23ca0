from __future__ import annotations

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.workflow.shape import IterationShape


@pytest.mark.parametrize(
    ("sync_every", "max_staleness", "versions"),
    [
        (1, 0, [0, 1, 2, 3, 4, 5]),
        (1, 1, [0, 0, 1, 2, 3, 4]),
        (1, 2, [0, 0, 0, 1, 2, 3]),
        (2, 1, [0, 0, 2, 2, 4, 4]),
        (2, 2, [0, 0, 0, 2, 2, 4]),
        (3, 2, [0, 0, 0, 3, 3, 3]),
    ],
)
def test_the_version_that_generates(sync_every, max_staleness, versions):
    shape = IterationShape(8, sync_every=sync_every, max_staleness=max_staleness)
    found = [shape.generation_version(iteration) for iteration in range(6)]
    assert found == versions
    assert all(k - version <= max_staleness for k, version in enumerate(versions))


def test_syncs_make_the_versions_that_generation_needs():
    shape = IterationShape(8, sync_every=3, max_staleness=4)
    installed = {0} | {k + 1 for k in range(30) if shape.has_sync(k)}
    assert {shape.generation_version(k) for k in range(30)} <= installed


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_samples": 0}, "num_samples = 0"),
        ({"rollout_micro_batches": 9}, "at most 8, the number of samples"),
        ({"mini_batches": 0}, "mini_batches = 0"),
        ({"max_staleness": -1}, "max_staleness = -1"),
        ({"sync_every": 4, "max_staleness": 2}, "up to 3 iterations stale"),
    ],
)
def test_impossible_cuts_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        IterationShape(**({"num_samples": 8} | values))
