"""How long `flexrlhf plan` takes, and how much memory, as the cluster grows: measured."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from flexrlhf.config.yaml_text import write_yaml

ROOT: Final = Path(__file__).parents[2]
EXAMPLE: Final = ROOT / "examples" / "plans" / "ppo-70b-1024-h100.yaml"
DEVICES: Final = (8, 16, 32, 64, 128, 256, 512, 1024)
RUNS: Final = 3
_MEASURES: Final = ("seconds", "cpu_seconds", "search_seconds", "mebibytes")
_SAMPLES: Final = 4
"""Of an iteration per device, as in the example; a quarter of them is a mini-batch."""
_REFUSED: Final = 2
"""Exit status where nothing fits."""


def measured(devices: int, runs: int = RUNS) -> dict[str, Any]:
    """Returns the medians of some runs of the whole command in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Path(folder) / "cluster.yaml"
        nodes = [{"pool": "all", "count": devices // 8, "devices": 8, "type": "H100-80G"}]
        links = {"inside_pool": "InfiniBand-8x400G"}
        cluster.write_text(write_yaml({"nodes": nodes, "links": links}), encoding="utf-8")
        found = [_run(_command(devices, cluster), Path(folder) / "plan.json") for _ in range(runs)]
    answered = [key for key in _MEASURES if found[0][key] is not None]
    middle = {key: statistics.median(run[key] for run in found) for key in answered}
    return {"devices": devices, "answer": found[0]["answer"], **middle}


def machine() -> dict[str, str]:
    """Returns where and of what the times are; `load` is the machine's, of the minute before."""
    head = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "commit": commit or "unknown",
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _command(devices: int, cluster: Path) -> list[str]:
    samples = _SAMPLES * devices
    return [
        sys.executable,
        "-m",
        "flexrlhf.cli",
        "plan",
        str(EXAMPLE),
        "--json",
        f"--set=cluster={cluster}",
        f"--set=training.prompts_per_iteration={samples}",
        f"--set=training.mini_batch_samples={samples // 4}",
    ]


def _run(command: list[str], out: Path) -> dict[str, Any]:
    with out.open("w", encoding="utf-8") as file:
        begun_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun_s
    process.returncode = os.waitstatus_to_exitcode(status)
    answer, search_seconds = "nothing fits", None
    if process.returncode == 0:
        document = json.loads(out.read_text(encoding="utf-8"))
        answer, search_seconds = document["plans"][0]["strategy"], document["search"]["seconds"]
    elif process.returncode != _REFUSED:
        raise subprocess.CalledProcessError(process.returncode, command)
    return {
        "answer": answer,
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "search_seconds": search_seconds,
        "mebibytes": usage.ru_maxrss / 1024,
    }


def _processor() -> str:
    """The processor's name where the system tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [row.partition(":")[2].strip() for row in text.splitlines() if "model name" in row]
    return names[0] if names else platform.machine()
