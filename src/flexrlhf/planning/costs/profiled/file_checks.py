"""What is wrong with a profile file: keys, ranges, and numbers that no machine has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, cast

from flexrlhf.config.problems import Problem, absence, mistake
from flexrlhf.core.errors import ConfigError, nearest
from flexrlhf.planning.cluster.device_type import NUMBER_TYPES

FORM: Final = 1
"""Of the file; it changes with the meaning of a key."""
Range = tuple[float, float]

_SECONDS: Final[Range] = (0.0, 10.0)
_SPEED: Final[Range] = (1e6, 1e16)
PARTS: Final = ("pass", "layer", "sequence", "sequence_layer")
"""Of the host's seconds of a pass."""
_PASSES: Final = ("score", "train", "decode")
_NUMBERS: Final[Mapping[str, Mapping[str, Range]]] = {
    "host_s": {
        **dict.fromkeys(("task", "answer", "barrier_sample"), _SECONDS),
        **{f"{p}_{part}": _SECONDS for p in _PASSES for part in PARTS},
    },
    "update_s": {"step": _SECONDS, "tensor": _SECONDS, "param": (0.0, 1e-3)},
    "logit_s": dict.fromkeys(("score", "train", "draw"), (0.0, 1e-3)),
    "memory": {
        "read_bytes_per_s": (1e7, 1e14),
        "cache_bytes_per_s": (1e6, 1e14),
        "process_bytes": (1e6, 1e12),
        "allocator_overhead": (0.0, 4.0),
        "logit_copies": (1.0, 100.0),
    },
}
"""Sections of numbers, and what a number may be: far beyond any machine, yet no slip of the pen."""
_LATER: Final[Mapping[str, Mapping[str, Range]]] = {
    "wholes": dict.fromkeys(("generate", "score", "train"), (0.1, 10.0)),
}
"""Sections that files lack which were made before they were measured."""
_TABLES: Final[Mapping[str, Mapping[str, Range]]] = {
    "layer_flops_per_s": {"width": (1, 1e6), "score": _SPEED, "train": _SPEED},
    "row_flops_per_s": {"rows": (1, 1e9), "speed": _SPEED},
}
"""Lists of rows that ascend in their first column."""
_SECTIONS: Final = ("form", "made", "machine", *_NUMBERS, *_TABLES)
_BYTE: Final[Range] = (0.0, 1e-3)
_WORKER_NUMBERS: Final[Mapping[str, Mapping[str, Range]]] = {
    "parcels_s": {"request": _SECONDS, "byte": _BYTE, "sample": _SECONDS},
    "weights_s": {"pull": _SECONDS, "tensor": _SECONDS, "byte": _BYTE, "install_byte": _BYTE},
}
_COUNT: Final[Range] = (1, 1e6)
_WORKER_TABLES: Final[Mapping[str, Mapping[str, Range]]] = {
    "slowdowns": {"processes": _COUNT, "slowdown": (0.5, 1e4)},
    "groups": {
        "ranks": _COUNT,
        "message_s": _SECONDS,
        "step_s": _SECONDS,
        "sum_byte_s": _BYTE,
        "share_byte_s": _BYTE,
        **{
            f"{work}_{part}": limits
            for work in ("gathers", "trains", "reduces")
            for part, limits in (("layer_s", _SECONDS), ("byte_s", _BYTE))
        },
    },
    "round_trips": {"workers": _COUNT, "seconds": _SECONDS},
}
_PRODUCTS: Final[Range] = (1e-3, 1e9)
_JOINED_TABLES: Final[Mapping[str, Mapping[str, Range]]] = {
    "machines": {"products_per_s": _PRODUCTS},
    "links": {"bytes_per_s": (1e2, 1e14), "latency_s": _SECONDS},
}
_JOINED_NAMES: Final[Mapping[str, str]] = {"machines": "address", "links": "between"}
"""Of each table the key that is no number."""
_JOINED_SECTIONS: Final = ("products_per_s", *_JOINED_TABLES)
_ENDS: Final = 2
"""Of a link."""
_WORKER_SECTIONS: Final = ("cores", "one_thread", *_WORKER_NUMBERS, *_WORKER_TABLES)
"""Of `workers`, which a profile has where several processes were measured."""


def check_profile(document: Any, source: str) -> None:
    """Checks the content of a profile file.

    Raises:
        ConfigError: lists every key that is unknown, missing or absurd.
    """
    problems = list(_problems(document))
    if problems:
        lines = "\n  ".join(f"- {problem}" for problem in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError(
            f"{source} is no profile of a machine: {count}.",
            lines,
            "Measure one: flexrlhf profile --out profile.yaml",
        )


def _problems(document: Any) -> Iterator[Problem]:
    if not isinstance(document, dict) or not document:
        empty = document is None or document == {}
        yield absence("The file", "empty." if empty else "not a mapping.")
        return
    content = cast("dict[str, Any]", document)
    if content.get("form") != FORM:
        yield mistake("form", content.get("form"), "another form of the file.", f"Right: {FORM}.")
        return
    yield from _key_problems("", content, _SECTIONS, optional=("workers", "joined", *_LATER))
    yield from _machine_problems(content.get("machine"))
    if not isinstance(content.get("made", {}), dict):
        yield absence("made", "not a mapping.", "Right: when, by what command, with what software.")
    yield from _section_problems("", content, {**_NUMBERS, **_LATER}, _TABLES)
    if "workers" in content:
        yield from _worker_problems(content["workers"])
    if "joined" in content:
        yield from _joined_problems(content["joined"])


def _joined_problems(joined: Any) -> Iterator[Problem]:
    """Says what is wrong with the machines of a Ray cluster and the links between them."""
    if not isinstance(joined, dict):
        yield absence("joined", "not a mapping.", f"Right: {', '.join(_JOINED_SECTIONS)}.")
        return
    values = cast("dict[str, Any]", joined)
    yield from _key_problems("joined.", values, _JOINED_SECTIONS)
    yield from _range_problem("joined.products_per_s", values.get("products_per_s", 1.0), _PRODUCTS)
    known = [row.get("address") for row in _rows(values.get("machines"))]
    if not all(isinstance(address, str) and address for address in known) or not known:
        yield absence("joined.machines", "a machine without an address, or none at all.")
    for key in _JOINED_TABLES:
        if not isinstance(values.get(key, []), list):
            yield mistake(f"joined.{key}", values[key], "no list of rows.")
    for key, ranges in _JOINED_TABLES.items():
        name = _JOINED_NAMES[key]
        for place, row in enumerate(_rows(values.get(key))):
            prefix = f"joined.{key}.{place}"
            yield from _key_problems(f"{prefix}.", row, (name, *ranges))
            yield from (
                problem
                for number, limits in ranges.items()
                if number in row
                for problem in _range_problem(f"{prefix}.{number}", row[number], limits)
            )
    for place, row in enumerate(_rows(values.get("links"))):
        ends: list[Any] = row["between"] if isinstance(row.get("between"), list) else []
        if len(ends) != _ENDS or any(end not in known for end in ends):
            right = "Right: two of joined.machines."
            yield mistake(f"joined.links.{place}.between", row.get("between"), "no link.", right)


def _rows(table: Any) -> list[dict[str, Any]]:
    """Returns the rows of a table that are mappings."""
    listed = cast("list[Any]", table) if isinstance(table, list) else []
    return [cast("dict[str, Any]", row) for row in listed if isinstance(row, dict)]


def _worker_problems(workers: Any) -> Iterator[Problem]:
    if not isinstance(workers, dict):
        yield absence("workers", "not a mapping.", f"Right: {', '.join(_WORKER_SECTIONS)}.")
        return
    values = cast("dict[str, Any]", workers)
    yield from _key_problems("workers.", values, _WORKER_SECTIONS)
    yield from _range_problem("workers.cores", values.get("cores", 1), (1, 1024))
    yield from _section_problems("workers.", values, _WORKER_NUMBERS, _WORKER_TABLES)
    own = values.get("one_thread", {})
    if not isinstance(own, dict):
        yield absence("workers.one_thread", "not a mapping.")
    elif own:
        inner = cast("dict[str, Any]", own)
        known = (*_NUMBERS, *_TABLES)
        yield from _key_problems("workers.one_thread.", inner, known, optional=tuple(_LATER))
        numbers = {**_NUMBERS, **_LATER}
        yield from _section_problems("workers.one_thread.", inner, numbers, _TABLES)


def _section_problems(
    prefix: str,
    content: Mapping[str, Any],
    sections: Mapping[str, Mapping[str, Range]],
    tables: Mapping[str, Mapping[str, Range]],
) -> Iterator[Problem]:
    for section, ranges in sections.items():
        if section in content:
            yield from _number_problems(f"{prefix}{section}", content[section], ranges)
    for table, ranges in tables.items():
        if table in content:
            yield from _table_problems(f"{prefix}{table}", content[table], ranges)


def _machine_problems(machine: Any) -> Iterator[Problem]:
    if machine is None:
        return
    if not isinstance(machine, dict):
        yield absence("machine", "not a mapping.")
        return
    values = cast("dict[str, Any]", machine)
    yield from _key_problems("machine.", values, ("device", "threads", "memory_bytes", "dtype"))
    device, dtype = values.get("device", "x"), values.get("dtype", "float32")
    if not isinstance(device, str) or not device:
        yield mistake("machine.device", device, "no name.", "Right: text.")
    if dtype not in NUMBER_TYPES:
        right = f"Right: one of {', '.join(NUMBER_TYPES)}."
        yield mistake("machine.dtype", dtype, "no number type.", right)
    threads = values.get("threads", 1)
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= 1024:
        yield mistake("machine.threads", threads, "out of range.", "Right: from 1 to 1024.")
    held = values.get("memory_bytes", 1e9)
    yield from _range_problem("machine.memory_bytes", held, (1e8, 1e14))


def _number_problems(section: str, values: Any, ranges: Mapping[str, Range]) -> Iterator[Problem]:
    if not isinstance(values, dict):
        yield absence(section, "not a mapping.", f"Right: {', '.join(ranges)}.")
        return
    numbers = cast("dict[str, Any]", values)
    yield from _key_problems(f"{section}.", numbers, tuple(ranges))
    for key, limits in ranges.items():
        if key in numbers:
            yield from _range_problem(f"{section}.{key}", numbers[key], limits)


def _table_problems(table: str, rows: Any, ranges: Mapping[str, Range]) -> Iterator[Problem]:
    if not isinstance(rows, list) or not rows:
        yield absence(table, "no list of rows.", f"Right: at least one row of {', '.join(ranges)}.")
        return
    found: list[Problem] = []
    listed = cast("list[Any]", rows)
    for place, row in enumerate(listed):
        found += _number_problems(f"{table}.{place}", row, ranges)
    first = next(iter(ranges))
    if not found and any(a[first] >= b[first] for a, b in pairwise(listed)):
        found.append(absence(table, f"the column {first} does not ascend."))
    yield from found


def _key_problems(
    prefix: str,
    values: Mapping[str, Any],
    known: tuple[str, ...],
    *,
    optional: tuple[str, ...] = (),
) -> Iterator[Problem]:
    for key in values:
        if key not in (*known, *optional):
            right = nearest(str(key), known) or f"Known here: {', '.join(known)}."
            yield absence(f"{prefix}{key}", "unknown key.", right)
    for key in known:
        if key not in values:
            yield absence(f"{prefix}{key}", "missing.")


def _range_problem(key: str, value: Any, limits: Range) -> Iterator[Problem]:
    low, high = limits
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        yield mistake(key, value, "not accepted here.", f"Right: from {low:g} to {high:g}.")
