"""How many samples go through a role at once: as many as fit, within what makes sense."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from flexrlhf.core.names import Stage
from flexrlhf.planning.placement.placed_role import PlacedRole
from flexrlhf.planning.search.request import PlanRequest

_MOST_SAMPLES: Final = 1024
"""Samples per replica and pass beyond which nothing gets faster."""
_PASSES_PER_STAGE: Final = 4
"""Micro-batches per pipeline stage that leave a bubble of a fifth."""

Largest = Callable[[Stage, int], int]
"""From a stage and a number of samples to how many of them fit; 0 if none does."""


def pass_sizes(request: PlanRequest, placed: PlacedRole) -> tuple[int, ...]:
    """Returns the samples per replica and pass that come into question, ascending.

    They are the user's number, or powers of two and all samples of a step.
    """
    if placed.micro_batch_samples:
        return (placed.micro_batch_samples,)
    most = _samples_per_step(request, placed)
    return (*(2**i for i in range(most.bit_length()) if 2**i < most), most)


def best_pass(request: PlanRequest, placed: PlacedRole, largest: Largest) -> int:
    """Returns the samples per pass: as many as fit, since fewer passes cost less.

    A pipeline needs several passes to be full, so there it is the largest size that leaves four
    per stage. Where nothing fits it is 1, and the fit check says so.
    """
    if placed.micro_batch_samples:
        return placed.micro_batch_samples
    most = _samples_per_step(request, placed)
    fitting = largest("train" if placed.model.is_trained else "score", most)
    if placed.layout.pipeline == 1:
        return max(1, fitting)
    wanted = min(fitting, most // (_PASSES_PER_STAGE * placed.layout.pipeline))
    return max([size for size in pass_sizes(request, placed) if size <= wanted], default=1)


def most_at_once(request: PlanRequest, placed: PlacedRole, parts: int) -> int:
    """Returns the sequences that a replica of the engine has to generate, or may at once.

    Args:
        request: what is placed.
        placed: a role that generates.
        parts: into which a rollout is cut.
    """
    assert placed.engine is not None
    workload = request.workload
    generated = math.ceil(workload.num_samples * workload.generated)
    share = max(1, -(-generated // (parts * placed.engine_replicas)))
    return min(share, placed.engine.most_samples or share)


def _samples_per_step(request: PlanRequest, placed: PlacedRole) -> int:
    per_step = request.workload.num_samples / request.workload.mini_batches
    owners = max(1.0, placed.layout.data / request.workload.sequence_split)
    return min(_MOST_SAMPLES, max(1, int(per_step // owners)))
