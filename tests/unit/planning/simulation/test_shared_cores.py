"""Tasks that hold each other up: times worked out by hand."""

from __future__ import annotations

import pytest

from flexrlhf.planning.simulation.shared_cores import SharedCores


def twice_from_three(devices: int) -> float:
    """Two cores: three processes and more take turns."""
    return max(1.0, devices / 2)


def test_one_task_takes_its_own_time() -> None:
    cores = SharedCores(twice_from_three)
    assert cores.start(0, 2, 3.0, 10.0) == {0: pytest.approx(13.0)}


def test_two_tasks_with_a_core_each_do_not_hold_each_other_up() -> None:
    cores = SharedCores(twice_from_three)
    cores.start(0, 1, 3.0, 0.0)
    assert cores.start(1, 1, 5.0, 1.0) == {0: pytest.approx(3.0), 1: pytest.approx(6.0)}


def test_tasks_beyond_the_cores_go_slower_until_one_ends() -> None:
    cores = SharedCores(twice_from_three)
    cores.start(0, 2, 3.0, 0.0)
    # Four devices at work halve the pace: 2 s are left of the first, which then take 4 s.
    assert cores.start(1, 2, 5.0, 1.0) == {0: pytest.approx(5.0), 1: pytest.approx(11.0)}
    # Then the second has done 2 of its 5 s, and goes on at its own pace.
    assert cores.end(0, 5.0) == {1: pytest.approx(8.0)}


def test_the_slowdown_of_a_group_by_itself_is_in_its_time_already() -> None:
    cores = SharedCores(twice_from_three)
    assert cores.start(0, 4, 3.0, 0.0) == {0: pytest.approx(3.0)}
