"""What the page says of the time that planning takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from spread import table

GOAL_S: Final = 10.0
GOAL_DEVICES: Final = 1024
"""With four 70B roles, on two cores."""


def growth_section(growth: Mapping[str, Any]) -> Iterator[str]:
    """Returns the section."""
    machine, sizes = growth["machine"], growth["sizes"]
    yield from [
        "## How long planning takes",
        "",
        "**Measured**, not simulated: the whole command"
        " `flexrlhf plan examples/plans/ppo-70b-1024-h100.yaml --json`, four 70B models, with as"
        " many H100 as stand in the table and four samples per device. Median of"
        f" {growth['runs']}, one after the other, on {machine['processor']},"
        f" {machine['cores']} cores (the command uses one), Python {machine['python']}, commit"
        f" {machine['commit']}. The machine's load was {machine['load']} before"
        f" and {machine['load_after']} at the end, our own program included."
        " `python benchmarks/planner/study.py --only growth` measures again.",
        "",
    ]
    header = ("devices", "answer", "command, s", "of it the search, s", "CPU, s", "memory, MiB")
    yield from table(header, map(_line, sizes))
    yield from [goal_words(sizes), "", _growth(sizes), ""]
    yield from ["![Time of a plan by devices](images/planner-study/growth.svg)", ""]


def _line(size: Mapping[str, Any]) -> tuple[object, ...]:
    search = size.get("search_seconds")
    return (
        size["devices"],
        size["answer"],
        f"{size['seconds']:.2f}",
        "-" if search is None else f"{search:.2f}",
        f"{size['cpu_seconds']:.2f}",
        f"{size['mebibytes']:.0f}",
    )


def goal_words(sizes: Sequence[Mapping[str, Any]]) -> str:
    """Returns whether the largest cluster was planned in time."""
    largest = sizes[-1]
    took = (
        f"Planning four 70B models on {largest['devices']} devices took {largest['seconds']:.1f} s"
        f" all in all, {largest['cpu_seconds']:.1f} s of it on the processor (measured)"
    )
    if largest["devices"] != GOAL_DEVICES:
        return f"{took}."
    is_met = "met" if largest["seconds"] < GOAL_S else "missed"
    return f"{took}; the goal of {GOAL_S:g} s is {is_met}."


def _growth(sizes: Sequence[Mapping[str, Any]]) -> str:
    """The exponent between the smallest and the largest cluster on which something fits."""
    answered = [size for size in sizes if size.get("search_seconds")]
    if len(answered) < 2:
        return "Too few sizes have an answer to say how the time grows."
    first, last = answered[0], answered[-1]
    factor = last["devices"] / first["devices"]
    slower = last["search_seconds"] / first["search_seconds"]
    power = math.log(slower) / math.log(factor)
    return (
        f"From {first['devices']} to {last['devices']} devices, {factor:g} times as many, the"
        f" search takes {slower:.1f} times as long: it grows with the power {power:.2f} of the"
        " devices."
    )
