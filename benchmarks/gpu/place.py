"""Where check and bench run: whether there is a GPU that torch sees, and with which variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from needs import PARTS, missing, old_python

SOURCES = Path(__file__).resolve().parents[2] / "src"
PROBE_S = 120.0
PROBE = """
import json, torch
found = torch.cuda.is_available()
print(json.dumps([torch.__version__, torch.cuda.get_device_name(0) if found else ""]))
"""


def place(device: str) -> tuple[str, str]:
    """Returns why nothing can be run, if so, and what it would be run on."""
    reason = old_python() or missing({"torch": PARTS[0].needs["torch"]})
    if reason:
        return f"{sys.executable}: {reason}", ""
    command = [sys.executable, "-c", PROBE]
    try:
        said = subprocess.run(
            command,
            env=environment(device),
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


def environment(device: str) -> dict[str, str]:
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
