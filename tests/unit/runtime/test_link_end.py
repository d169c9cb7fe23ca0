"""The ends of links between machines, here on one machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flexrlhf.core.errors import TransferLost
from flexrlhf.learning.transport.fetching import close_idle_connections
from flexrlhf.runtime.devices.link_end import LinkEnd
from flexrlhf.runtime.profiling.joined_measure import rounds


@pytest.fixture
def ends() -> Iterator[tuple[LinkEnd, LinkEnd]]:
    two = LinkEnd(None, "secret"), LinkEnd(None, "secret")
    yield two
    close_idle_connections()
    for end in two:
        end.close()


def test_bytes_come_faster_than_over_any_throttled_link(ends):
    one, other = ends
    found = one.measure(other.address)
    assert found.bytes_per_s > 2e7
    assert 0 < found.question_s < 0.5


def test_an_end_with_another_secret_gives_nothing(ends):
    one, _ = ends
    stranger = LinkEnd(None, "another")
    try:
        with pytest.raises(TransferLost):
            stranger.measure(one.address)
    finally:
        stranger.close()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_every_two_machines_meet_once_and_none_is_in_two_pairs_of_a_round(count):
    found = rounds(count)
    pairs = [pair for pairs in found for pair in pairs]
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    for pairs in found:
        places = [place for pair in pairs for place in pair]
        assert len(places) == len(set(places))
