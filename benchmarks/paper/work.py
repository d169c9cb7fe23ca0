"""The work that placements are compared at: the paper's cases, with a batch and lengths of ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from published import row_named

from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import case_of
from flexrlhf.planning.cases.setting import setting_of
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.search.request import PlanRequest

LENGTHS: Final = {256: (128, 128), 2048: (256, 1792), 8192: (512, 7680)}
"""Tokens of prompts and answers by their sum; every sequence is as long, as in the paper."""
SAMPLES_PER_DEVICE: Final = {
    "llama-7b": 72,
    "llama-13b": 72,
    "llama-33b": 12,
    "llama-65b": 12,
}
"""Of an iteration, by model. 12: Figure 7's 400 s times Table II's 0.93 samples/s are 372 samples
on 32 devices. 72: three passes of the 24 that fit colocated, two of the 36 that fit interleaved."""
_WHOLE_PASSES: Final = 256
"""Tokens up to which activations are kept, as in the paper; longer sequences recompute them."""
_CASE: Final = "flex-t1-023"
_SHARED_CASE: Final = "flex-t5-002"
"""Rows of Tables I and V, whose software, adapters and links all comparisons have."""


def work(model: str, devices: int, tokens: int, *, shares_trunk: bool = False) -> PlanRequest:
    """Returns what is placed.

    Args:
        model: shape of all four models.
        devices: A100 of 80 GB, eight in a node.
        tokens: of a sequence, one of `LENGTHS`.
        shares_trunk: actor and critic are one model with two heads.
    """
    row = dict(row_named(_SHARED_CASE if shares_trunk else _CASE))
    row |= {"n_gpus": str(devices)}
    row |= {f"{r}_model": model for r in ("actor", "critic", "reference", "reward")}
    request = setting_of(case_of(row, 0), Assumptions()).request
    prompt, response = LENGTHS[tokens]
    workload = replace(
        request.workload,
        num_samples=SAMPLES_PER_DEVICE[model] * devices,
        prompt=Lengths.fixed(prompt),
        response=Lengths.fixed(response),
    )
    models = {
        role: replace(held, recomputes=tokens > _WHOLE_PASSES)
        for role, held in request.models.items()
    }
    return replace(request, workload=workload, models=models)
