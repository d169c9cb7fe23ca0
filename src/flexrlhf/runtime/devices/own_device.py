"""The device that a process computes on, and the end of what it was given to compute."""

from __future__ import annotations

import os
from typing import Final

import torch

from flexrlhf.core.errors import ConfigError
from flexrlhf.runtime.devices.work_order import DeviceKind

_LOCAL_RANK: Final = "LOCAL_RANK"
"""Set by launchers that let every process of a machine see all of its GPUs."""


def take_device(kind: DeviceKind) -> torch.device:
    """Returns this process's device and makes it the present one of the calling thread.

    Ray shows a worker its own GPU alone, by CUDA_VISIBLE_DEVICES. Where several are visible,
    LOCAL_RANK says which one is meant.

    Raises:
        ConfigError: a GPU is asked for, and torch sees none, or not that one.
    """
    if kind == "cpu":
        return torch.device("cpu")
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(os.environ.get(_LOCAL_RANK, "0")) if visible > 1 else 0
    if index >= visible:
        raise ConfigError(
            f"A worker is to compute on GPU {index}, and torch sees {visible}.",
            "Every worker has a GPU that it sees.",
            "Look at `flexrlhf doctor` on that machine, at CUDA_VISIBLE_DEVICES and LOCAL_RANK.",
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def wait_for_kernels(device: torch.device) -> None:
    """Waits until a GPU has done what it was given, so that the time of a task is its own.

    Errors of kernels, too, are then raised in the task that started them.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
