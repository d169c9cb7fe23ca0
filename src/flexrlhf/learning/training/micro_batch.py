"""How many tokens one micro-batch may hold, found by a dry step on the longest batch."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from flexrlhf.learning.training.memory import free_bytes, held_bytes, peak_bytes, reset_peak

logger = logging.getLogger(__name__)

CPU_TOKENS = 8192
"""On a CPU larger micro-batches gain nothing: the matrices have long filled every core."""
MEMORY_FILL = 0.8
"""Share of the free memory that a dry step may be predicted to take."""


def find_micro_batch_tokens(
    dry_step: Callable[[int], None],
    *,
    longest: int,
    num_samples: int,
    reserved_bytes: int,
    device: torch.device,
) -> int:
    """Returns the largest token budget whose step fits in memory.

    The step is tried with 1 and then twice as many of the longest sequences, until the next
    doubling is predicted not to fit, the whole mini-batch fits, or the device's useful size is
    reached.

    Args:
        dry_step: runs forward and backward on that many sequences of the longest length, and
            discards the gradient.
        longest: tokens of the longest prompt and response that the config allows.
        num_samples: sequences in a mini-batch; a larger micro-batch is never needed.
        reserved_bytes: memory that other things will take before the first real step.
        device: where the step runs.
    """
    most = num_samples
    if device.type == "cpu":
        most = min(num_samples, max(1, CPU_TOKENS // longest))
    count = 1
    while True:
        used = _step_bytes(dry_step, count, device)
        following = min(2 * count, most)
        free = free_bytes(device) - reserved_bytes
        logger.info("dry step: %d x %d tokens took %.0f MB", count, longest, used / 1e6)
        if following == count or used * following / count > MEMORY_FILL * free:
            return count * longest
        count = following


def _step_bytes(dry_step: Callable[[int], None], count: int, device: torch.device) -> int:
    before = held_bytes(device)
    reset_peak(device)
    dry_step(count)
    return max(0, peak_bytes(device) - before)
