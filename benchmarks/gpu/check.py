"""Runs this package on a GPU and on the CPU beside it, and says where they differ.

    python benchmarks/gpu/check.py [--device cuda|cpu]

Any interpreter with torch will do; nothing is downloaded or installed, and what needs a package
that is not there is skipped with that reason. Without a GPU all of it is skipped. `--device cpu`
runs the same parts on the CPU alone, in both layouts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from needs import PARTS, Part, missing, old_python

FOLDER = Path(__file__).resolve().parent
SOURCES = FOLDER.parents[1] / "src"
PART_S = 280.0
"""A part that takes longer has failed: all of them together take less."""
PROBE_S = 120.0
PROBE = """
import json, torch
found = torch.cuda.is_available()
print(json.dumps([torch.__version__, torch.cuda.get_device_name(0) if found else ""]))
"""


def main() -> int:
    """Runs every part that can be run; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", choices=[part.name for part in PARTS], help="one part alone")
    options = parser.parse_args()
    reason, where = _place(options.device)
    if reason:
        print(f"gpu-check: skipped: {reason}")
        return 0
    print(f"gpu-check: {where}, against the CPU", flush=True)
    began_s = time.monotonic()
    wanted = [part for part in PARTS if options.only in (None, part.name)]
    results = [_run(part, options.device) for part in wanted]
    words = ", ".join(f"{results.count(word)} {word}" for word in ("ok", "failed", "skipped"))
    print(f"gpu-check: {words}, {time.monotonic() - began_s:.0f} s")
    return 1 if "failed" in results else 0


def _place(device: str) -> tuple[str, str]:
    """Returns why nothing can be run, if so, and what it would be run on."""
    reason = old_python() or missing({"torch": PARTS[0].needs["torch"]})
    if reason:
        return f"{sys.executable}: {reason}", ""
    command = [sys.executable, "-c", PROBE]
    try:
        said = subprocess.run(
            command,
            env=_environment(device),
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"torch of {sys.executable} did not say within {PROBE_S:g} s what it sees", ""
    if said.returncode:
        lines = said.stderr.strip().splitlines() or ["no word why"]
        return f"torch of {sys.executable} cannot be imported: {lines[-1]}", ""
    version, name = json.loads(said.stdout.splitlines()[-1])
    if device == "cpu":
        return "", f"torch {version}, on the CPU as asked"
    return ("", f"torch {version}, {name}") if name else (f"torch {version} sees no GPU", "")


def _run(part: Part, device: str) -> str:
    """Runs one part in a process of its own; returns `ok`, `failed` or `skipped`."""
    reason = missing(part.needs)
    if reason:
        print(f"{part.name}: skipped: {reason}", flush=True)
        return "skipped"
    print(f"{part.name}: {part.says}", flush=True)
    began_s = time.monotonic()
    command = [sys.executable, str(FOLDER / part.file), "--device", device]
    try:
        done = subprocess.run(command, env=_environment(device), timeout=PART_S, check=False)
        code = done.returncode
    except subprocess.TimeoutExpired:
        print(f"  not done within {PART_S:g} s")
        code = 1
    word = "failed" if code else "ok"
    print(f"{part.name}: {word}, {time.monotonic() - began_s:.0f} s", flush=True)
    return word


def _environment(device: str) -> dict[str, str]:
    """Returns the variables of every process: this checkout first, one GPU or none, no TF32."""
    paths = [str(SOURCES), os.environ.get("PYTHONPATH", "")]
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": gpu if device == "cuda" else "",
        "NVIDIA_TF32_OVERRIDE": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


if __name__ == "__main__":
    sys.exit(main())
