"""How fast this process computes now, as against its peers."""

from __future__ import annotations

import time
from typing import Final

import torch

_SIZE: Final = 512
_SPELL_S: Final = 0.5
"""Long enough for a quota of processor time, which is given anew every 0.1 s, to count."""


def measured_speed(device: torch.device) -> float:
    """Returns the products of two matrices that are done per second.

    Args:
        device: of the process.
    """
    left = torch.ones(_SIZE, _SIZE, device=device)
    _multiply(left)  # the first one is slow
    done, start_s = 0, time.monotonic()
    while time.monotonic() - start_s < _SPELL_S:
        _multiply(left)
        done += 1
    return done / (time.monotonic() - start_s)


def _multiply(left: torch.Tensor) -> None:
    product = left @ left
    if product.is_cuda:
        torch.cuda.synchronize(product.device)
