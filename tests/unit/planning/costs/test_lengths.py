"""Length distributions and what they mean for a batch."""

from __future__ import annotations

import math
import random

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.workload import Workload


def test_a_skewed_distribution_has_the_mean_that_was_asked_for():
    found = Lengths.skewed(1000, 30_000)
    assert found.mean == pytest.approx(1000, rel=1e-6)
    assert found.longest == 30_000


def test_the_longest_of_many_is_that_of_a_log_normal():
    found = Lengths.skewed(1000, 1e9)
    draw = random.Random(0)
    scale = 1000 / math.exp(0.8**2 / 2)
    longest = sorted(
        max(scale * math.exp(0.8 * draw.gauss(0, 1)) for _ in range(512)) for _ in range(200)
    )[100]
    assert found.longest_of(512) == pytest.approx(longest, rel=0.15)


def test_nothing_is_longer_than_the_limit():
    assert Lengths.skewed(1000, 2000).longest_of(10_000) <= 2000


def test_the_running_add_up_to_all_tokens():
    lengths = Lengths((10.0, 20.0, 30.0, 40.0))
    assert sum(steps * running for steps, running in lengths.falls(4)) == 100


def test_a_batch_that_shrinks_ends_with_its_longest():
    found = Lengths.skewed(1000, 100_000)
    assert sum(steps for steps, _ in found.falls(256)) == pytest.approx(found.longest_of(256))


@pytest.mark.parametrize("values", [(), (-1.0,), (2.0, 1.0)])
def test_no_distribution_is_refused(values):
    with pytest.raises(ConfigError, match="no distribution"):
        Lengths(values)


def test_one_long_sequence_keeps_one_replica_busy():
    workload = Workload(64, Lengths.fixed(0), Lengths((100.0,) * 63 + (6400.0,)))
    # 64 sequences of 198 tokens on average: 64 replicas with one each wait for the longest.
    assert workload.imbalance(64, 64) == pytest.approx(6400 / workload.mean_tokens, rel=0.01)
    assert workload.imbalance(64, 1) == 1.0
