"""Turns the links of a description into values, and the link matrix into one that has no gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from flexrlhf.config.cluster import ClusterDescription, LinkPair, Links, OwnLink
from flexrlhf.config.problems import Problem, absence, config_error, mistake
from flexrlhf.core.errors import ConfigError, nearest
from flexrlhf.planning.cluster.catalogue import DEVICE_TYPES, usual_link
from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.cluster.link_catalogue import is_inside_link, link_type


def link_inside(
    key: str, given: str | OwnLink | None, kind: DeviceType, problems: list[Problem]
) -> Link:
    """Returns what joins the devices of a node; its mistakes are added to `problems`.

    Args:
        key: where the link stands, for errors.
        given: a name, an own link, or None for the usual link of the devices.
        kind: the devices of the node.
        problems: what is wrong with the description.
    """
    usual = usual_link(kind)
    link = _link(key, given, problems) if given is not None else usual
    if link is None:
        return usual
    if isinstance(given, str) and not is_inside_link(given):
        right = "Right: NVLink, PCIe or shared-memory, or {bandwidth_gbytes_s: ...}."
        problems.append(mistake(key, given, "joins nodes, not the devices of one.", right))
    elif isinstance(given, str) and kind == DEVICE_TYPES.get(kind.name) and _is_beyond(link, usual):
        wrong = f"{_speed(link)}, but {kind.name} has at most {_speed(usual)} ({usual.name})."
        problems.append(mistake(key, given, wrong, f"Right: {usual.name}, or leave the key out."))
    return link


def link_matrix(
    description: ClusterDescription, counts: Mapping[str, int], problems: list[Problem]
) -> dict[frozenset[str], Link]:
    """Returns the link between nodes for each two pools, and for each pool of several nodes.

    For a pool of one node it is what would join a second, where the description says it.

    Args:
        description: the whole cluster.
        counts: nodes of each pool.
        problems: what is wrong with the description; mistakes are added.
    """
    pairs = [frozenset(pair) for pair in combinations(counts, 2)]
    needed = [frozenset({pool}) for pool, count in counts.items() if count > 1] + pairs
    if isinstance(description.links, tuple):
        matrix = _listed(description.links, counts, problems)
    else:
        known = [frozenset({pool}) for pool in counts] + pairs
        matrix = _ranged(description.links or Links(), known, problems)
    problems.extend(_gaps(matrix, needed, description.links))
    return {pair: link for pair, link in matrix.items() if link is not None}


_Matrix = dict[frozenset[str], Link | None]
"""None where a link is named that does not exist, which is a problem already."""


def _listed(
    pairs: tuple[LinkPair, ...], counts: Mapping[str, int], problems: list[Problem]
) -> _Matrix:
    matrix: _Matrix = {}
    for position, pair in enumerate(pairs):
        key = f"links.{position}"
        unknown = [pool for pool in pair.between if pool not in counts]
        for pool in unknown:
            known = nearest(pool, counts) or f"Pools: {', '.join(counts)}."
            problems.append(mistake(f"{key}.between", list(pair.between), _no_pool(pool), known))
        joined = frozenset(pair.between)
        if joined in matrix:
            wrong = "an earlier entry joins them already."
            problems.append(mistake(f"{key}.between", list(pair.between), wrong, "Keep one."))
        elif not unknown:
            matrix[joined] = _link_between(f"{key}.link", pair.link, problems)
    return matrix


def _ranged(links: Links, known: list[frozenset[str]], problems: list[Problem]) -> _Matrix:
    matrix: _Matrix = {}
    for key, given, size in (
        ("links.inside_pool", links.inside_pool, 1),
        ("links.between_pools", links.between_pools, 2),
    ):
        if given is not None:
            link = _link_between(key, given, problems)
            matrix |= {pair: link for pair in known if len(pair) == size}
    return matrix


def _gaps(
    matrix: _Matrix, needed: list[frozenset[str]], given: Links | tuple[LinkPair, ...] | None
) -> Iterator[Problem]:
    for pair in needed:
        if pair in matrix:
            continue
        names = sorted(pair)
        if len(names) == 1:
            what, key = f"no link joins the nodes of pool {names[0]}.", "links.inside_pool"
        else:
            what, key = f"no link joins {names[0]} and {names[1]}.", "links.between_pools"
        if isinstance(given, tuple):
            entry = ", ".join(names if len(names) == 2 else names * 2)
            yield absence("links", what, f"Add: {{between: [{entry}], link: ...}}.")
        else:
            yield absence(key, what, "Right: a link such as InfiniBand-8x200G or Ethernet-100G.")


def _link_between(key: str, given: str | OwnLink, problems: list[Problem]) -> Link | None:
    link = _link(key, given, problems)
    if isinstance(given, str) and is_inside_link(given):
        right = (
            "Right: one between nodes, such as InfiniBand-8x200G; what NVLink joins is one node."
        )
        problems.append(mistake(key, given, "joins the devices of one node.", right))
    return link


def link_between(key: str, given: str | OwnLink) -> Link:
    """Returns the link between machines that a config names alone.

    Args:
        key: where it stands, for errors.
        given: a name, or an own link.

    Raises:
        ConfigError: no machines can be joined so.
    """
    problems: list[Problem] = []
    link = _link_between(key, given, problems)
    if link is None or problems:
        raise config_error("config", problems)
    return link


def _link(key: str, given: str | OwnLink, problems: list[Problem]) -> Link | None:
    if isinstance(given, OwnLink):
        name = f"{given.bandwidth_gbytes_s:g} GB/s"
        bandwidth, latency_s = given.bandwidth_gbytes_s * 1e9, given.latency_us * 1e-6
        return Link(name, bandwidth, latency_s, "the cluster's description")
    try:
        return link_type(given)
    except ConfigError as error:
        problems.append(absence(key, error.wrong, f"{error.right} {error.do}"))
        return None


def _is_beyond(link: Link, usual: Link) -> bool:
    return link.bandwidth > usual.bandwidth


def _speed(link: Link) -> str:
    return f"{link.bandwidth / 1e9:g} GB/s per device"


def _no_pool(pool: str) -> str:
    return f"there is no pool {pool}."
