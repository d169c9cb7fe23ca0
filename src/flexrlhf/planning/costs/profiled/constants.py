"""What `flexrlhf profile` measures on a machine: the constants of one process on one device.

Nothing here is fitted to a run. Each constant is the median time of a small piece of the program
itself, on models whose sizes are those of no example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class PassCost:
    """Seconds of a pass that do not depend on how wide the model is: the host's own work."""

    pass_s: float
    """Once: the mask, positions, the final norm, Python around the model."""
    layer_s: float
    """Per layer: the launches of its operations."""
    sequence_s: float
    """Per sequence: padding it into the batch, cutting its results out."""
    sequence_layer_s: float = 0.0
    """Per sequence and layer: its share of attention, and of what a layer does row by row."""

    def seconds(self, layers: float, sequences: float) -> float:
        """Returns the host's seconds of one pass."""
        per_sequence = self.sequence_s + layers * self.sequence_layer_s
        return self.pass_s + layers * self.layer_s + sequences * per_sequence


@dataclass(frozen=True, slots=True)
class WidthSpeed:
    """How fast layers of one width compute, everything between their products included."""

    width: int
    """Of the hidden state."""
    score: float
    """FLOP/s without gradients."""
    train: float
    """FLOP/s forward and backward, which are three forward passes' operations."""


@dataclass(frozen=True, slots=True)
class RowSpeed:
    """How fast products with few rows are, their weights read from main memory."""

    rows: int
    speed: float
    """FLOP/s."""


@dataclass(frozen=True, slots=True)
class LogitCost:
    """Seconds per logit beside the product that makes it: ways through memory, mostly."""

    score_s: float
    """Softmax and the chosen log-probability."""
    train_s: float
    """The same with the entropy, once more in the backward pass, and the gradient."""
    draw_s: float
    """Softmax, sum and search by which a token is drawn."""


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """Seconds of an optimiser step, the norm of the gradient included."""

    step_s: float
    tensor_s: float
    """Per weight tensor."""
    param_s: float
    """Per parameter."""


@dataclass(frozen=True, slots=True)
class MemoryConstants:
    """What the process holds besides the numbers that the program counts."""

    read_bandwidth: float
    """Bytes/s of a large tensor that is read."""
    cache_bandwidth: float
    """Bytes/s of keys and values to which one new token per sequence attends."""
    process_bytes: float
    """The most that a whole run holds whose models are next to nothing: program and libraries."""
    overhead: float
    """Share of the saved activations that the allocator takes besides."""
    logit_copies: float
    """Tensors as large as the logits that are alive at once while a loss is derived."""


@dataclass(frozen=True, slots=True)
class WholeCost:
    """What whole pieces of a run take, by the sum of their parts.

    Beside its parts a piece finds caches that another model has filled, shares its process with
    other threads, and ends where several processes do it together when the slowest ends.
    """

    generate: float = 1.0
    score: float = 1.0
    train: float = 1.0
    """Passes and the step of the optimiser."""


@dataclass(frozen=True, slots=True)
class ProfiledCosts:
    """Every constant of one machine."""

    dtype: str
    """Of the numbers that were computed with."""
    task_s: float
    """Handing one task to the worker and back."""
    answer_s: float
    """Making a sample of one generated answer: its text, its tensors."""
    barrier_s: float
    """Per sample between scoring and training: rewards, advantages."""
    score: PassCost
    train: PassCost
    decode: PassCost
    """Of one step: a token for each running sequence."""
    widths: tuple[WidthSpeed, ...]
    """Ascending; between two of them the logarithm of the speed goes straight."""
    rows: tuple[RowSpeed, ...]
    """Likewise."""
    logits: LogitCost
    update: UpdateCost
    memory: MemoryConstants
    wholes: WholeCost = WholeCost()

    @property
    def most_flops(self) -> float:
        """FLOP/s of the fastest products that were measured."""
        return max(speed.speed for speed in self.rows)

    def faster(self, factor: float) -> ProfiledCosts:
        """Returns the constants of `factor` times as many cores; the host's work stays its own."""
        logits = self.logits
        return replace(
            self,
            widths=tuple(
                WidthSpeed(speed.width, factor * speed.score, factor * speed.train)
                for speed in self.widths
            ),
            rows=tuple(RowSpeed(speed.rows, factor * speed.speed) for speed in self.rows),
            logits=LogitCost(
                logits.score_s / factor, logits.train_s / factor, logits.draw_s / factor
            ),
            update=replace(self.update, param_s=self.update.param_s / factor),
            memory=replace(
                self.memory,
                read_bandwidth=factor * self.memory.read_bandwidth,
                cache_bandwidth=factor * self.memory.cache_bandwidth,
            ),
        )

    def score_speed(self, width: float) -> float:
        """Returns FLOP/s of layers without gradients."""
        return _between([(speed.width, speed.score) for speed in self.widths], width)

    def train_speed(self, width: float) -> float:
        """Returns FLOP/s of layers forward and backward."""
        return _between([(speed.width, speed.train) for speed in self.widths], width)

    def row_speed(self, rows: float, width: float) -> float:
        """Returns FLOP/s of layers that few rows pass; narrow layers are slower by their share."""
        by_rows = _between([(speed.rows, speed.speed) for speed in self.rows], rows)
        return by_rows * min(1.0, self.score_speed(width) / self.widths[-1].score)


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Interpolates the logarithms; beyond the first and last point their values hold."""
    if at <= points[0][0]:
        return points[0][1]
    for (low, first), (high, second) in pairwise(points):
        if at <= high:
            part = math.log(at / low) / math.log(high / low)
            return first * (second / first) ** part
    return points[-1][1]
