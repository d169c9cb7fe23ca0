"""How many tokens one micro-batch may hold, found by a dry step on the longest batch."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.training.memory import free_bytes, held_bytes, peak_bytes, reset_peak

logger = logging.getLogger(__name__)

CPU_TOKENS = 2048
"""On a CPU larger micro-batches gain nothing: the matrices have long filled every core."""
MEMORY_FILL = 0.8
"""Share of the free memory that a step may be predicted to take."""
_GROWTH = 4
"""How many times as many sequences the next try may have."""


def find_micro_batch_tokens(
    dry_step: Callable[[int], None],
    *,
    longest: int,
    num_samples: int,
    reserved_bytes: int,
    device: torch.device,
) -> int:
    """Returns the largest token budget whose step fits in memory.

    The step is tried with 1 of the longest sequences and then with up to four times as many as
    before, as far as the last try predicts that they fit, until the whole mini-batch or the
    device's useful size is reached, or no more fit.

    Args:
        dry_step: runs forward and backward on that many sequences of the longest length, and
            discards the gradient.
        longest: tokens of the longest prompt and response that the config allows.
        num_samples: sequences in a mini-batch; a larger micro-batch is never needed.
        reserved_bytes: memory that other things will take before the first real step.
        device: where the step runs.

    Raises:
        ConfigError: not even one sequence fits.
    """
    most = num_samples
    if device.type == "cpu":
        most = min(num_samples, max(1, CPU_TOKENS // longest))
    count, fitted = 1, 0
    while True:
        try:
            used = _step_bytes(dry_step, count, device)
        except torch.OutOfMemoryError as error:
            if fitted:
                return fitted * longest
            raise ConfigError(
                f"One sequence of {longest} tokens does not fit in the memory of {device}.",
                "Forward and backward of the longest sequence must fit.",
                "Shorten the longest sequence, set training.gradient_checkpointing: true, or "
                "choose a smaller model.",
            ) from error
        fitted = count
        logger.info("dry step: %d x %d tokens took %.0f MB", count, longest, used / 1e6)
        room = MEMORY_FILL * (free_bytes(device) - reserved_bytes)
        fitting = int(room * count / used) if used else most
        following = min(_GROWTH * count, most, fitting)
        if following <= count:
            return count * longest
        count = following


def _step_bytes(dry_step: Callable[[int], None], count: int, device: torch.device) -> int:
    before = held_bytes(device)
    reset_peak(device)
    dry_step(count)
    return max(0, peak_bytes(device) - before)
