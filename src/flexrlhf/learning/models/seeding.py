"""Random weights that depend on a seed alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Draws everything inside the block from `seed`, on the CPU, and restores the random state.

    Weights are drawn on the CPU because a GPU's generator gives other numbers from the same seed.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield
