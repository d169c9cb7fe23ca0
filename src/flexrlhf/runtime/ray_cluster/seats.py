"""On which machine each worker goes, compared with what the cluster has before anything waits."""

from __future__ import annotations

from collections.abc import Sequence

from flexrlhf.core.errors import PlanError
from flexrlhf.runtime.ray_cluster.session import Kind, RayNode


def seats(
    groups: Sequence[int],
    nodes: Sequence[RayNode],
    kind: Kind,
    wanted: Sequence[str | None] = (),
) -> list[RayNode]:
    """Returns the machine of every worker.

    Workers of a node of the plan, such as those of a tensor-parallel group, stay together; several
    nodes of the plan may share a machine with room enough. A group goes to the machine that the
    plan means where it has room. The largest comes first, so that it finds some.

    Args:
        groups: workers of each node of the plan, in the order of their ranks.
        nodes: machines of the cluster, with what is free on them.
        kind: what a worker occupies one of.
        wanted: addresses of the machines that the plan means; empty where any will do.

    Raises:
        PlanError: there is no room; the message says what is asked for and what is there.
    """
    free = [node.room(kind) for node in nodes]
    chosen: dict[int, int] = {}
    for group in sorted(range(len(groups)), key=lambda index: -groups[index]):
        fitting = [place for place, room in enumerate(free) if room >= groups[group]]
        unused = [place for place in fitting if place not in chosen.values()]
        if not fitting:
            raise _shortfall(groups, nodes, kind)
        meant = [place for place in fitting if wanted and nodes[place].address == wanted[group]]
        place = (meant or unused or fitting)[0]
        chosen[group] = place
        free[place] -= groups[group]
    return [nodes[chosen[group]] for group, size in enumerate(groups) for _ in range(size)]


def _shortfall(groups: Sequence[int], nodes: Sequence[RayNode], kind: Kind) -> PlanError:
    asked = " + ".join(map(str, groups))
    there = ", ".join(node.words(kind) for node in nodes)
    what = "GPUs and as many CPUs" if kind == "GPU" else "CPUs"
    return PlanError(
        f"The plan needs {asked} {what}, each summand on one machine; free in the Ray cluster: "
        f"{there or 'no machine'}.",
        "Every node of the plan fits on a machine with as many free.",
        "Use fewer workers, wait until other runs have ended, or add machines to the cluster.",
    )
