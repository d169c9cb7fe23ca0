"""Times jobs against other programs, in turns, and writes docs/benchmarks.md and .json.

    python benchmarks/speed/bench.py [--jobs grpo-tiny,G32] [--repeats 5] [--threads 1,2]
    python benchmarks/speed/bench.py --parts learning

Jobs are files of benchmarks/jobs; all programs of a job read the same one, and must do as many
optimiser steps on as many tokens. Parts are speed, which wants an idle machine, and learning, which
compares reward curves. Results of jobs and parts that are not run stay.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench_page import renewed
from bench_rows import Row, merged, rows_of
from contest import contest
from entries import entries
from jobs import Job, Reinforcing, job_names, read_job
from learning import learn
from learning_page import learning_pictures
from material import MOST_TURNS, make_material

import flexrlhf
from flexrlhf.core.atomic_files import write_atomically
from flexrlhf.core.errors import ConfigError, FlexError
from flexrlhf.core.machine import physical_cores
from flexrlhf.runtime.environment import source_commit
from flexrlhf.runtime.machine import processor_name

_ROOT: Final = Path(__file__).parents[2]
_LEAST_REPEATS: Final = 1


def main() -> int:
    """Runs the jobs and returns the exit status."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that programs are ended too
    try:
        if options.draw:
            _write(options.page, {})
            return 0
        jobs = {name: read_job(name) for name in options.jobs or job_names()}
        for part in options.parts or (["speed"] if options.jobs else list(_PARTS)):
            for name, job in jobs.items():
                _PARTS[part](name, job, options)
    except FlexError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _time(name: str, job: Job, options: argparse.Namespace) -> None:
    sys.stderr.write(f"{name}\n")
    began_s = time.monotonic()
    material = make_material(job, options.cache / "bench", options.cache / "wheels")
    programs = entries(job, material, options.cache / "peers", options.threads)
    results = contest(job, programs, options.repeats)
    facts = _facts() | {"minutes": round((time.monotonic() - began_s) / 60, 1)}
    _write(options.page, {"rows": list(rows_of(name, job, results, facts))})


def _learn(name: str, job: Job, options: argparse.Namespace) -> None:
    if not isinstance(job, Reinforcing) or job.curve is None:
        return
    sys.stderr.write(f"{name}: reward curves\n")
    folders = tuple(options.cache / part for part in ("bench", "wheels", "peers"))
    _write(options.page, {"learning": list(learn(name, job, folders, _facts()))})


_PARTS: Final[Mapping[str, Callable[[str, Job, argparse.Namespace], None]]] = {
    "speed": _time,
    "learning": _learn,
}


def _facts() -> dict[str, Any]:
    commit = source_commit(Path(flexrlhf.__file__).parent).get("commit", "")[:7]
    return {"commit": commit, "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}


def _write(page: Path, new: Mapping[str, Sequence[Row]]) -> None:
    """Writes rows beside those of other jobs and parts, and page and pictures of all.

    Args:
        page: whose numbers lie beside it.
        new: rows by part; none draws the page of the numbers that there are.
    """
    path = page.with_suffix(".json")
    old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": []}
    document: dict[str, Any] = dict(old)
    if new:
        machine = f"{processor_name()}, {physical_cores()} cores"
        document |= {"commit": _facts()["commit"], "machine": machine, "command": _command()}
    for part, rows in new.items():
        document[part] = merged(old.get(part, []), rows, job_names())
    text = json.dumps(document, indent=1) + "\n"
    document = json.loads(text)
    write_atomically(path, text)
    jobs = {name: read_job(name) for name in job_names()}
    write_atomically(page, renewed(page.read_text(encoding="utf-8"), document, jobs))
    for name, picture in learning_pictures(document.get("learning", [])).items():
        image = page.parent / "images" / "benchmarks" / f"{name}.svg"
        image.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(image, picture + "\n")


def _command() -> str:
    given = shlex.join(sys.argv[1:])
    return f'make bench BENCH="{given}"' if given else "make bench"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    threads = sorted({1, physical_cores()})
    parser.add_argument("--jobs", type=_words, default=[], help="names, with commas; all of them")
    parser.add_argument("--repeats", type=_repeats, default=5, help="turns of each program (5)")
    parser.add_argument(
        "--threads", type=_counts, default=threads, help="to be tried, with commas: 1 and all cores"
    )
    parser.add_argument(
        "--parts",
        type=_parts,
        default=[],
        help=f"of {', '.join(_PARTS)}, with commas; speed if jobs are named, else all",
    )
    parser.add_argument("--draw", action="store_true", help="the page anew from its numbers")
    parser.add_argument("--page", type=Path, default=_ROOT / "docs" / "benchmarks.md")
    parser.add_argument("--cache", type=Path, default=_ROOT / ".cache")
    return parser.parse_args()


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _parts(text: str) -> list[str]:
    parts = _words(text)
    if wrong := [part for part in parts if part not in _PARTS]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(_PARTS)}")
    return parts


def _counts(text: str) -> list[int]:
    return [int(word) for word in _words(text)]


def _repeats(text: str) -> int:
    count = int(text)
    if not _LEAST_REPEATS <= count <= MOST_TURNS - 4:
        raise argparse.ArgumentTypeError(f"from {_LEAST_REPEATS} to {MOST_TURNS - 4}")
    return count


if __name__ == "__main__":
    sys.exit(main())
