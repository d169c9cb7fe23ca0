"""The number type that forward passes of training run in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def autocast(device_type: str, precision: str) -> AbstractContextManager[Any]:
    """Returns bfloat16 autocast, or nothing for `float32`."""
    if precision == "bfloat16":
        return torch.autocast(device_type, dtype=torch.bfloat16)
    return nullcontext()
