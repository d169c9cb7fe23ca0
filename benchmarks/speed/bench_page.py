"""The part of docs/benchmarks.md that `make bench` writes; what people write beside it stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from jobs import Job, Peer
from learning_page import learning_pictures, learning_section
from scaling_page import scaling_picture, scaling_section

from flexrlhf.core.errors import ConfigError
from flexrlhf.report.markup import Html

Row = Mapping[str, Any]

BEGIN: Final = "<!-- written by `make bench`: begin -->"
END: Final = "<!-- written by `make bench`: end -->"
_NOT_MEASURED: Final = "not measured"


def renewed(page: str, document: Mapping[str, Any], jobs: Mapping[str, Job]) -> str:
    """Returns the page with its written part made anew.

    Args:
        page: as it is.
        document: content of benchmarks.json.
        jobs: that there are, by name.

    Raises:
        ConfigError: the page has no place for it.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ConfigError(
            "The page of benchmarks has no place for what was measured.",
            f"It stands between the lines {BEGIN} and {END}.",
            "Write both lines into docs/benchmarks.md.",
        )
    text = "\n".join(_part(document, jobs))
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def pictures(document: Mapping[str, Any]) -> dict[str, Html]:
    """Returns the pictures of the page, by name.

    Args:
        document: content of benchmarks.json.
    """
    found = learning_pictures(document.get("learning", []))
    if document.get("scaling"):
        found["scaling"] = scaling_picture(document["scaling"])
    return found


def _part(document: Mapping[str, Any], jobs: Mapping[str, Job]) -> Iterator[str]:
    rows: Sequence[Row] = document["rows"]
    found = {(row["job"], row["peer"]): row for row in rows}
    yield "## Against other programs"
    yield ""
    yield (
        f"Last written by `{document['command']}`; each row says when it was measured, at which"
        " commit and on which machine. The jobs"
        " are the files of [benchmarks/jobs](../benchmarks/jobs). Programs run in turns, each in an"
        " environment of its own with the same torch and transformers, and in the best of its"
        " settings that were tried. In every turn they must have generated and trained on as many"
        " tokens with as many optimiser steps as the job says, else nothing is written. A first"
        " turn is not timed. A ratio above 1 says that we are better; it is the median over the"
        " turns, with the least and the most."
    )
    yield ""
    yield "| job | what | an iteration |"
    yield "|---|---|---|"
    for name, job in jobs.items():
        yield f"| {name} | {job.what} | {_work(job)} |"
    yield ""
    yield from _speeds(found, jobs)
    yield ""
    yield from _memory(found, jobs)
    yield ""
    yield from _starts(rows)
    yield ""
    yield from learning_section(document.get("learning", []))
    yield ""
    yield from scaling_section(document.get("scaling", []))


def _work(job: Job) -> str:
    steps = f", {job.steps} optimiser step{'s' if job.steps > 1 else ''}" if job.steps else ""
    if job.does == "dpo":
        return f"{job.pairs} pairs of {job.side_tokens} tokens a side{steps}"
    answers = f"{job.prompts} x {job.samples_per_prompt} answers"
    return f"{answers}, {job.prompt_tokens} + {job.new_tokens} tokens{steps}"


def _speeds(found: Mapping[tuple[str, str], Row], jobs: Mapping[str, Job]) -> Iterator[str]:
    yield "### Speed"
    yield ""
    yield "| job | against | ours | theirs | ratio | goal | | turns | at | commit | machine |"
    yield f"|{'---|' * 11}"
    for name, peer in _contests(jobs):
        row = found.get((name, peer.name))
        goal = f">= {peer.goal:g}"
        if row is None:
            yield f"| {name} | {peer.name} | | | | {goal} | {_NOT_MEASURED} | | | | |"
            continue
        ratio = row["ratio"]
        cells = [
            name,
            peer.name,
            _figure(row["ours"]["median"], row["unit"]),
            _figure(row["theirs"]["median"], row["unit"]),
            f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})",
            goal,
            _verdict(is_met=ratio["median"] >= peer.goal),
            str(len(row["ours"]["runs"])),
            row["at"],
            row["commit"],
            row["machine"],
        ]
        yield f"| {' | '.join(cells)} |"


def _memory(found: Mapping[tuple[str, str], Row], jobs: Mapping[str, Job]) -> Iterator[str]:
    yield "### Memory"
    yield ""
    yield (
        "The most that a program and the processes that it started have held, start-up included."
        " The goal is no more than TRL's."
    )
    yield ""
    yield "| job | against | ours | theirs | |"
    yield "|---|---|---|---|---|"
    for name, peer in _contests(jobs):
        row = found.get((name, peer.name))
        if row is None or "theirs" not in row["peak_bytes"]:
            continue
        ours, theirs = (row["peak_bytes"][who] for who in ("ours", "theirs"))
        verdict = _verdict(is_met=ours <= theirs) if peer.program == "trl" else ""
        yield f"| {name} | {peer.name} | {_mib(ours)} | {_mib(theirs)} | {verdict} |"


def _starts(rows: Sequence[Row]) -> Iterator[str]:
    yield "### Start-up and settings"
    yield ""
    yield "From the command to the end of the first turn, which is not timed."
    yield ""
    yield "| job | program | settings | start-up |"
    yield "|---|---|---|---|"
    seen: set[tuple[str, str]] = set()
    for row in rows:
        for who, name in (("ours", "flexrlhf"), ("theirs", row["peer"])):
            if (row["job"], name) in seen or who not in row["settings"]:
                continue
            seen.add((row["job"], name))
            settings = ", ".join(f"{key} {value}" for key, value in row["settings"][who].items())
            start = f"{row['start_up_s'][who]:.1f} s" if who in row["start_up_s"] else ""
            yield f"| {row['job']} | {name} | {settings} | {start} |"


def _contests(jobs: Mapping[str, Job]) -> Iterator[tuple[str, Peer]]:
    for name, job in jobs.items():
        for peer in job.peers:
            yield name, peer


def _figure(value: float, unit: str) -> str:
    digits = 3 if value < 1 else 2 if value < 10 else 1
    return f"{value:.{digits}f} {unit}"


def _mib(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB"


def _verdict(*, is_met: bool) -> str:
    return "met" if is_met else "**not met**"
