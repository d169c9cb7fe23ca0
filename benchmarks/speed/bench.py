"""Times jobs against other programs, in turns, and writes docs/benchmarks.md and .json.

    python benchmarks/speed/bench.py [--jobs grpo-tiny,G32] [--repeats 5] [--threads 1,2]
    python benchmarks/speed/bench.py --parts learning
    python benchmarks/speed/bench.py --parts scaling --threads 2 --repeats 3 --missing

Jobs are files of benchmarks/jobs; all programs of a job read the same one, and must do as many
optimiser steps on as many tokens. Parts are speed of these jobs, learning, which compares their
reward curves, and scaling, which times generation as batch, length and model grow. Speed and
scaling want an idle machine. Results of jobs, parts and points that are not run stay, and each is
written as soon as it is there.
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

from bench_page import pictures, renewed
from bench_rows import Row, merged, rows_of
from contest import Result, contest
from entries import entries
from jobs import Job, Reinforcing, job_names, read_job
from learning import learn
from material import MOST_TURNS, make_material
from scaling import points, row_of

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
            _PARTS[part](jobs, options)
    except FlexError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _time(jobs: Mapping[str, Job], options: argparse.Namespace) -> None:
    for name, job in jobs.items():
        sys.stderr.write(f"{name}\n")
        began_s = time.monotonic()
        results = _contest(job, options)
        facts = _facts() | {"minutes": round((time.monotonic() - began_s) / 60, 1)}
        _write(options.page, {"rows": list(rows_of(name, job, results, facts))})


def _learn(jobs: Mapping[str, Job], options: argparse.Namespace) -> None:
    folders = (options.cache / "bench", options.cache / "wheels", options.cache / "peers")
    for name, job in jobs.items():
        if isinstance(job, Reinforcing) and job.curve is not None:
            sys.stderr.write(f"{name}: reward curves\n")
            _write(options.page, {"learning": list(learn(name, job, folders, _facts()))})


def _scale(jobs: Mapping[str, Job], options: argparse.Namespace) -> None:
    del jobs
    known = {row["job"] for row in _read(options.page).get("scaling", [])}
    for name, point in points().items():
        if not (options.missing and name in known):
            sys.stderr.write(f"{name}\n")
            row = row_of(point, _contest(point.job, options), _facts())
            _write(options.page, {"scaling": [row]})


def _contest(job: Job, options: argparse.Namespace) -> list[Result]:
    material = make_material(job, options.cache / "bench", options.cache / "wheels")
    programs = entries(job, material, options.cache / "peers", options.threads)
    return contest(job, programs, options.repeats)


_PARTS: Final[Mapping[str, Callable[[Mapping[str, Job], argparse.Namespace], None]]] = {
    "speed": _time,
    "learning": _learn,
    "scaling": _scale,
}


def _facts() -> dict[str, Any]:
    commit = source_commit(Path(flexrlhf.__file__).parent).get("commit", "")[:7]
    return {
        "commit": commit,
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "machine": f"{processor_name()}, {physical_cores()} cores",
    }


def _write(page: Path, new: Mapping[str, Sequence[Row]]) -> None:
    """Writes rows beside those of other jobs and parts, and page and pictures of all.

    Args:
        page: whose numbers lie beside it.
        new: rows by part; none draws the page of the numbers that there are.
    """
    old = _read(page)
    document: dict[str, Any] = dict(old)
    if new:
        facts = _facts()
        document |= {"command": _command(), **{key: facts[key] for key in ("commit", "machine")}}
    for part, rows in new.items():
        names = list(points()) if part == "scaling" else job_names()
        document[part] = merged(old.get(part, []), rows, names)
    text = json.dumps(document, indent=1) + "\n"
    document = json.loads(text)
    write_atomically(page.with_suffix(".json"), text)
    jobs = {name: read_job(name) for name in job_names()}
    write_atomically(page, renewed(page.read_text(encoding="utf-8"), document, jobs))
    for name, picture in pictures(document).items():
        image = page.parent / "images" / "benchmarks" / f"{name}.svg"
        image.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(image, picture + "\n")


def _read(page: Path) -> dict[str, Any]:
    path = page.with_suffix(".json")
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": []}


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
    parser.add_argument("--missing", action="store_true", help="of scaling, only points without")
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
