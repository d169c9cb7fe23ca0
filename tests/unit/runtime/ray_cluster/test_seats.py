"""Which machine each worker of a plan goes to."""

from __future__ import annotations

import pytest

from flexrlhf.core.errors import PlanError
from flexrlhf.runtime.ray_cluster.seats import seats
from flexrlhf.runtime.ray_cluster.session import RayNode


def machine(name: str, cpus: float, gpus: float = 0) -> RayNode:
    return RayNode(name, name, cpus, gpus)


def names(*arguments) -> list[str]:
    return [node.address for node in seats(*arguments)]


def test_a_group_stays_on_one_machine_and_groups_spread():
    assert names([1, 2], [machine("a", 4), machine("b", 4)], "CPU") == ["b", "a", "a"]


def test_groups_share_a_machine_that_has_room():
    assert names([2, 2], [machine("a", 4)], "CPU") == ["a"] * 4


def test_enough_in_all_but_not_on_one_machine_is_too_little():
    with pytest.raises(PlanError, match=r"needs 3 CPUs.*2 CPUs on a, 2 CPUs on b"):
        seats([3], [machine("a", 2), machine("b", 2)], "CPU")


def test_a_worker_on_a_gpu_needs_a_cpu_too():
    assert names([2], [machine("a", 1, 8), machine("b", 2, 2)], "GPU") == ["b", "b"]
    with pytest.raises(PlanError, match=r"8 GPUs and 1 CPUs on a"):
        seats([2], [machine("a", 1, 8)], "GPU")


def test_no_machine_at_all():
    with pytest.raises(PlanError, match="no machine"):
        seats([1], [], "CPU")


def test_a_group_goes_to_the_machine_that_the_plan_means_where_it_has_room():
    found = [machine("a", 2), machine("b", 4), machine("c", 4)]
    assert names([4, 1], found, "CPU", ["b", "c"]) == ["b"] * 4 + ["c"]
    assert names([4, 1], found, "CPU", ["a", "c"]) == ["b"] * 4 + ["c"]
