"""How fast this machine computes and reads: layers by width, products by rows, logits, memory."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch
from torch.nn import functional

from flexrlhf.learning.algorithms.token_logprobs import selected_logprobs
from flexrlhf.learning.data.collation import COLLATE
from flexrlhf.learning.rollout.packed_linear import PackedLinear, can_pack
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.rollout.sampling import draw_tokens
from flexrlhf.learning.scoring.passes import score_logprobs
from flexrlhf.planning.costs.profiled.constants import (
    LogitCost,
    PassCost,
    RowSpeed,
    WidthSpeed,
)
from flexrlhf.runtime.profiling.subjects import counts, layer_params, llama, samples, trainer
from flexrlhf.runtime.profiling.timing import median_s, medians_s

WIDTHS: Final = (64, 128, 256, 512, 1024)
_SEQUENCES, _TOKENS = 16, 64
_ROWS: Final = (1, 4, 16, 64, 256, 1024)
_ROW_WIDTH, _ROW_MATRICES = 1024, 16
"""Weights of 64 MiB in float32: more than a processor keeps."""
_HEAD_WIDTH, _HEAD_ROWS, _VOCABULARY = 32, 512, 32768
_DRAWN_ROWS: Final = 64
_READ_NUMBERS: Final = 2**26
_PASSES: Final = 3
"""A backward pass is twice a forward one's operations."""


def width_speed(width: int, score: PassCost, train: PassCost, device: torch.device) -> WidthSpeed:
    """Returns the speed of layers of one width.

    Args:
        width: of the hidden state, a multiple of 64.
        score: host costs that are taken off.
        train: the same with gradients.
        device: where the model is.
    """
    layers = 1 if width >= WIDTHS[-1] else 2
    model = llama(width, layers, device)
    role, rows = trainer(model), samples(_SEQUENCES, _TOKENS)
    num_tokens = _SEQUENCES * _TOKENS

    def accumulate() -> None:
        batch = COLLATE["prompts"](rows, role.objective.fields)
        role.accumulate(batch.to(role.backend.device), counts(_SEQUENCES))

    score_s, train_s = medians_s(
        [
            lambda: score_logprobs(model, rows, temperature=1.0, max_tokens=num_tokens),
            accumulate,
        ],
        budget_s=1.5,
        before=role.backend.discard_gradient,
    )
    attended = 4 * width * (_TOKENS + 1) / 2
    flops = layers * num_tokens * (2 * layer_params(width) + attended)
    net_score_s = _net(score_s, score.seconds(layers, _SEQUENCES))
    net_train_s = _net(train_s, train.seconds(layers, _SEQUENCES))
    return WidthSpeed(width, flops / net_score_s, _PASSES * flops / net_train_s)


def _net(whole_s: float, host_s: float) -> float:
    """Takes the host's part off, of which a hiccup could make more than there is."""
    return max(whole_s - host_s, 0.1 * whole_s)


def row_speeds(device: torch.device) -> tuple[RowSpeed, ...]:
    """Returns how fast few rows pass through weights that lie in main memory.

    As the native engine multiplies by them: packed where it can.
    """
    drawn = [torch.randn(_ROW_WIDTH, _ROW_WIDTH, device=device) for _ in range(_ROW_MATRICES)]
    packs = device.type == "cpu" and can_pack()
    speeds: list[RowSpeed] = []
    for rows in _ROWS:
        matrices = [
            PackedLinear(weight, None, rows=rows)
            if packs
            else partial(functional.linear, weight=weight)
            for weight in drawn
        ]
        inputs = torch.randn(rows, _ROW_WIDTH, device=device)
        flops = 2 * rows * _ROW_WIDTH**2 * _ROW_MATRICES
        seconds = median_s(lambda x=inputs, by=matrices: [product(x) for product in by])
        speeds.append(RowSpeed(rows, flops / seconds))
    return tuple(speeds)


def logit_cost(device: torch.device) -> LogitCost:
    """Returns what logits cost beside the product that makes them."""
    hidden_ND = torch.randn(_HEAD_ROWS, _HEAD_WIDTH, device=device)
    weight_VD = torch.randn(_VOCABULARY, _HEAD_WIDTH, device=device, requires_grad=True)
    targets_N = torch.arange(_HEAD_ROWS, device=device)
    num_logits = _HEAD_ROWS * _VOCABULARY

    @torch.no_grad()
    def product() -> None:
        functional.linear(hidden_ND, weight_VD)

    @torch.no_grad()
    def score() -> None:
        selected_logprobs(hidden_ND, weight_VD, targets_N)

    def train() -> None:
        logprobs_N, _ = selected_logprobs(hidden_ND, weight_VD, targets_N, with_entropy=True)
        logprobs_N.sum().backward()

    product_s, score_s, train_s = medians_s([product, score, train], budget_s=3.0)
    return LogitCost(
        score_s=max(0.0, score_s - product_s) / num_logits,
        train_s=max(0.0, train_s - 3 * product_s) / num_logits,
        draw_s=_draw_s(device),
    )


def _draw_s(device: torch.device) -> float:
    logits_BV = torch.randn(_DRAWN_ROWS, _VOCABULARY, device=device)
    uniforms_B = torch.full((_DRAWN_ROWS,), 0.5, dtype=torch.float64, device=device)
    sampling = Sampling(max_new_tokens=1)
    first_B = torch.zeros(_DRAWN_ROWS, dtype=torch.int64)
    seconds = median_s(lambda: draw_tokens(logits_BV, uniforms_B, sampling, positions_B=first_B))
    return seconds / (_DRAWN_ROWS * _VOCABULARY)


def read_bandwidth(device: torch.device) -> float:
    """Returns the bytes/s at which a large tensor is summed up."""
    numbers = torch.ones(_READ_NUMBERS, device=device)
    return numbers.numel() * numbers.element_size() / median_s(numbers.sum)
