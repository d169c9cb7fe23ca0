"""What `flexrlhf doctor` finds: what this machine can run, and what is wrong with it."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from flexrlhf.core.machine import logical_cpus, memory, physical_cores
from flexrlhf.core.names import BUILT_ENGINES, ENGINES
from flexrlhf.runtime.installation import (
    TRAIN,
    Package,
    declared_packages,
    installed_version,
    supported_python,
)
from flexrlhf.runtime.machine import existing_folder, free_disk_bytes, gpus, has_nvidia_driver
from flexrlhf.runtime.ray_cluster.authentication import MODE, token_source

Status = Literal["ok", "warning", "error"]

_GIB: Final = 2**30
_INSTALL: Final = 'pip install "flexrlhf[train]"'
_PURPOSES: Final = {
    "torch": "training, generating and scoring",
    "transformers": "reading models and tokenizers",
    "safetensors": "reading and writing weights and checkpoints",
    "gguf": "reading GGUF files",
    "datasets": "reading saved data sets, csv and parquet",
    "pyarrow": "reading parquet",
    "math-verify": "the reward `math`",
    "reasoning-gym": "data from `reasoning_gym:TASK` and its reward",
    "psutil": "measuring memory",
    "tensorboard": "the tracker `tensorboard`",
}
_MATRIX_SIZE: Final = 512


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: Status
    detail: str
    """What is there."""
    advice: str = ""
    """What to do, where there is something to do."""


def check_machine(run_folder: Path = Path("runs")) -> list[Finding]:
    """Looks at Python, packages, cores, memory, disks and GPUs, and lets torch compute.

    Args:
        run_folder: where runs will be written; it need not exist.
    """
    findings = [check_python(platform.python_version())]
    findings.extend(check_packages(declared_packages()))
    findings.append(check_engines())
    findings.append(check_ray(installed_version("ray"), os.environ))
    findings.append(check_cores(physical_cores(), os.environ.get("OMP_NUM_THREADS")))
    findings.append(check_memory())
    findings.append(check_disk("disk for runs", run_folder))
    findings.append(check_disk("disk for temporary files", Path(tempfile.gettempdir())))
    findings.append(check_writable(run_folder))
    if installed_version("torch") is not None:
        findings.extend(_check_torch())
    return findings


def check_python(version: str) -> Finding:
    """Compares a version of Python with those that are supported."""
    supported = supported_python()
    if supported.contains(version, prereleases=True):
        return Finding("python", "ok", f"{version} (supported: {supported or 'any'})")
    advice = f"Make an environment with Python {supported}."
    return Finding("python", "error", f"{version} (supported: {supported})", advice)


def check_packages(packages: list[Package]) -> Iterator[Finding]:
    """Yields what is installed, what is missing, and what that costs."""
    if not packages:
        yield Finding(
            "flexrlhf",
            "warning",
            "runs from a source folder without being installed, so versions are not checked",
            "Run `pip install -e .` in the source folder.",
        )
    for package in packages:
        if package.installed is None:
            yield _missing(package)
        elif not package.is_supported:
            detail = f"{package.installed} (supported: {package.supported})"
            advice = f'Run `pip install "{package.name}{package.supported}"`.'
            yield Finding(package.name, "error", detail, advice)
        else:
            yield Finding(package.name, "ok", f"{package.installed} ({package.supported})")


def _missing(package: Package) -> Finding:
    purpose = _PURPOSES.get(package.name, "every command")
    detail = f"not installed; it is needed for {purpose}"
    if package.extra == TRAIN:
        return Finding(package.name, "warning", detail, f"Run `{_INSTALL}`.")
    return Finding(package.name, "error", detail, "Run `pip install flexrlhf`.")


def check_engines() -> Finding:
    """Says which rollout engines can be used."""
    planned = [name for name in ENGINES if name not in BUILT_ENGINES]
    later = f"{' and '.join(planned)} are planned, not built yet"
    if installed_version("torch") and installed_version("transformers"):
        return Finding("engines", "ok", f"{', '.join(BUILT_ENGINES)}; {later}")
    detail = f"none, since torch or transformers is not installed; {later}"
    return Finding("engines", "warning", detail, f"To train or generate, run `{_INSTALL}`.")


def check_ray(version: str | None, environment: Mapping[str, str]) -> Finding:
    """Says whether runs of several workers are possible, and which token they show a cluster."""
    if version is None:
        advice = "To train on several devices, run `pip install 'flexrlhf[ray]'`."
        return Finding("ray", "ok", "not installed; one device needs none", advice)
    if environment.get(MODE, "token").lower() != "token":
        detail = f"{version}; {MODE}={environment[MODE]}: whoever reaches a cluster can use it"
        return Finding("ray", "warning", detail, f"Unset {MODE}; see docs/guides/ray.md.")
    source = token_source(environment)
    if source is None:
        advice = (
            "To join a cluster that has a token, put what `ray get-auth-token` prints on its head "
            "into ~/.ray/auth_token; see docs/guides/ray.md."
        )
        return Finding("ray", "ok", f"{version}; no token for clusters of others", advice)
    return Finding("ray", "ok", f"{version}; the token to join a cluster is that of {source}")


def check_cores(cores: int, wish: str | None) -> Finding:
    """Compares the cores with the user's wish for threads, the variable OMP_NUM_THREADS."""
    count = f"{cores} physical cores, {logical_cpus()} hardware threads"
    if wish is None:
        detail = f"{count}; a run uses {cores} threads (OMP_NUM_THREADS is not set)"
        advice = "When several processes share the machine, set OMP_NUM_THREADS=1 for each."
        return Finding("cores", "ok", detail, advice)
    detail = f"{count}; OMP_NUM_THREADS={wish}"
    threads = wish.partition(",")[0].strip()
    if not threads.isdecimal() or int(threads) < 1:
        return Finding("cores", "warning", f"{detail} is no number", f"Set it to {cores}.")
    if int(threads) > cores:
        advice = f"Threads that share a core slow each other down: set at most {cores}."
        return Finding("cores", "warning", detail, advice)
    return Finding("cores", "ok", detail)


def check_memory() -> Finding:
    """Says how much main memory is free."""
    state = memory()
    if state is None:
        advice = "Run `pip install psutil`."
        return Finding("memory", "warning", "this system does not tell without psutil", advice)
    detail = f"{_gib(state.available_bytes)} of {_gib(state.total_bytes)} free"
    if state.available_bytes < 2 * _GIB:
        advice = "Small models only: training takes about 16 bytes per parameter."
        return Finding("memory", "warning", detail, advice)
    return Finding("memory", "ok", detail)


def check_disk(name: str, folder: Path) -> Finding:
    """Says how much space is free where `folder` is or will be."""
    free = free_disk_bytes(folder)
    detail = f"{_gib(free)} free in {existing_folder(folder)}"
    if free < _GIB:
        return Finding(name, "error", detail, "Free some space: a run needs at least 1 GiB.")
    if free < 5 * _GIB:
        advice = "A checkpoint takes about 12 bytes per trained parameter, and two are kept."
        return Finding(name, "warning", detail, advice)
    return Finding(name, "ok", detail)


def check_writable(folder: Path) -> Finding:
    """Writes a file where runs will be written, and removes it."""
    nearest = existing_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"flexrlhf")
    except OSError as error:
        detail = f"{nearest} cannot be written: {error.strerror}"
        return Finding("run folder", "error", detail, "Choose another folder with --run-dir.")
    return Finding("run folder", "ok", f"{nearest} can be written")


def _check_torch() -> Iterator[Finding]:
    try:
        import torch  # noqa: F401 - whether it can be imported is the question
    except (ImportError, OSError) as error:
        first_line = str(error).partition("\n")[0]
        advice = "Install torch again; a library that it needs may be missing."
        yield Finding("torch import", "error", first_line, advice)
        return
    yield check_gpus()
    yield check_arithmetic()


def check_gpus() -> Finding:
    """Says which GPUs torch can use, and whether it misses one that is there."""
    found = gpus()
    if found:
        names = ", ".join(f"{gpu.name} ({_gib(gpu.memory_bytes)})" for gpu in found)
        return Finding("gpu", "ok", names)
    if has_nvidia_driver():
        advice = "Install a CUDA build of torch that fits the driver."
        return Finding("gpu", "warning", "an NVIDIA driver is there, but torch sees no GPU", advice)
    return Finding("gpu", "ok", "none; everything runs on the CPU")


def check_arithmetic() -> Finding:
    """Multiplies two matrices in float32 on torch, against NumPy in float64, and takes the time."""
    import torch

    generator = np.random.default_rng(0)
    shape = (_MATRIX_SIZE, _MATRIX_SIZE)
    left, right = generator.standard_normal(shape), generator.standard_normal(shape)
    left_f32, right_f32 = torch.from_numpy(left).float(), torch.from_numpy(right).float()
    product = left_f32 @ right_f32  # the first one is slow
    seconds: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        product = left_f32 @ right_f32
        seconds.append(time.perf_counter() - start)
    gap = float(np.abs(product.numpy() - left @ right).max())
    rate = 2 * _MATRIX_SIZE**3 / min(seconds) / 1e9
    detail = f"float32 matrix product: {rate:.0f} GFLOP/s on {torch.get_num_threads()} threads"
    # Sums of 512 products of about 1 each, rounded at 6e-8: far below this unless something is off.
    if not gap < 1e-2:
        advice = "Install torch again, and check the memory of this machine."
        return Finding("arithmetic", "error", f"{detail}, wrong by {gap:.2g}", advice)
    return Finding("arithmetic", "ok", f"{detail}, right within {gap:.0e}")


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
