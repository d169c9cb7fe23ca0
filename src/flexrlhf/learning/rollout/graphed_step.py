"""Decode steps that are captured once and repeated: CUDA graphs of `fixed_step`.

A graph reads and writes the memory that it saw when it was captured. So it is of a number of rows
and of cached tokens, both rounded up, and is dropped when the cache has moved or a weight lies
elsewhere; a weight that is changed in place is read as it then is. Rows that are added to fill a
graph lie behind those in use, in slots of the cache that no sequence has.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import torch
from torch import Tensor, nn

from flexrlhf.learning.models.families import Family
from flexrlhf.learning.models.output_head import output_head
from flexrlhf.learning.rollout.cuda_capture import Capture, CudaCapture, Replay
from flexrlhf.learning.rollout.fixed_step import fixed_step
from flexrlhf.learning.rollout.kv_cache import KVCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOKENS_AT_ONCE: Final = 128
"""Cached tokens are rounded up to a multiple."""
_MOST_GRAPHS: Final = 16
"""Kept at one time; the one not used for longest goes first."""
_log = logging.getLogger(__name__)


class StepGraphs:
    """Captures the steps of an engine's decoders, until one cannot be captured.

    Args:
        obstacle: why no step of this engine is captured, if so.
        device_type: where steps are captured.
        make_capture: returns what captures steps that are dropped together.
    """

    def __init__(
        self,
        *,
        obstacle: str | None = None,
        device_type: str = "cuda",
        make_capture: Callable[[torch.device], Capture] | None = None,
    ) -> None:
        self._obstacle = obstacle
        self._device_type = device_type
        self._make_capture = make_capture or CudaCapture
        self._said: set[str] = set()

    def step(self, model: nn.Module, family: Family, cache: KVCache) -> GraphedStep | None:
        """Returns the steps of a model over a cache; None, with a message, where there are none."""
        device = next(model.parameters()).device
        if device.type != self._device_type:
            return None
        reason = self._obstacle or _obstacle(model, device)
        if reason is not None:
            self._say(reason)
            return None
        return GraphedStep(model, family, cache, partial(self._make_capture, device), self.give_up)

    def give_up(self, reason: str) -> None:
        """Captures no more steps, and says so."""
        self._obstacle = reason
        self._say(reason)

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            _log.warning("Decode steps are not captured: %s.", reason)
            self._said.add(reason)


def _obstacle(model: nn.Module, device: torch.device) -> str | None:
    if torch.is_autocast_enabled(device.type):
        return "autocast casts weights anew, which a captured step would do for every token"
    # Parts of tensors, for one, are of another type.
    if any(type(one) is not nn.Parameter or one.device != device for one in model.parameters()):
        return f"the model does not lie whole on {device}"
    return None


@dataclass(frozen=True, slots=True)
class _Buffers:
    """What goes into steps and comes out, at addresses that stay."""

    tokens_R: Tensor
    positions_R: Tensor
    logits_RV: Tensor


class GraphedStep:
    """Steps of the sequences in a cache, each captured when its size first occurs.

    Args:
        model: whose weights are read in place.
        family: runs it.
        cache: of the sequences.
        make_capture: called before the first step, and whenever captured ones were dropped: the
            memory that those shared is given back.
        give_up: is told why a step could not be captured.
    """

    def __init__(
        self,
        model: nn.Module,
        family: Family,
        cache: KVCache,
        make_capture: Callable[[], Capture],
        give_up: Callable[[str], None],
    ) -> None:
        self._head = output_head(cast("PreTrainedModel", model)).weight
        self._weights = [
            (module._parameters, name)
            for module in model.modules()
            for name, _ in module.named_parameters(recurse=False)
        ]
        self._family = family
        self._cache = cache
        self._make_capture = make_capture
        self._capture: Capture | None = None
        self._give_up = give_up
        self._buffers: _Buffers | None = None
        self._replays: OrderedDict[tuple[int, int], Replay] = OrderedDict()
        """By rows and cached tokens."""
        self._seen: tuple[int, list[int]] = (0, [])
        """Moves of the cache and addresses of the weights, of which the captured steps are."""

    def __call__(self, tokens_B: Tensor) -> Tensor | None:
        """Reads the tokens that the cache was lengthened by.

        Returns:
            The logits [B, V], good until the next call; None where the step cannot be captured:
            then nothing has happened that would hinder any other way.
        """
        self._drop_stale()
        cache, num_rows = self._cache, len(tokens_B)
        size = (
            min(_rounded_up(num_rows), cache.num_slots),
            min(-(-cache.longest // _TOKENS_AT_ONCE) * _TOKENS_AT_ONCE, cache.num_places),
        )
        try:
            buffers = self._filled(tokens_B, size[0])
            replay = self._replays.get(size) or self._captured(buffers, *size)
        except RuntimeError as error:  # whatever a driver has against it, memory included
            self._replays.clear()
            self._give_up(str(error).strip().splitlines()[0].rstrip("."))
            return None
        self._replays[size] = replay
        self._replays.move_to_end(size)
        if len(self._replays) > _MOST_GRAPHS:
            self._replays.popitem(last=False)
        replay()
        return buffers.logits_RV[:num_rows]

    def _drop_stale(self) -> None:
        """Drops what was captured, where the cache or a weight lies elsewhere by now."""
        seen = self._cache.num_moves, [_address(held[name]) for held, name in self._weights]
        if seen != self._seen:
            self._seen = seen
            self._replays.clear()
            self._buffers = self._capture = None

    def _filled(self, tokens_B: Tensor, num_rows: int) -> _Buffers:
        """Puts a step's tokens and positions where captured steps look for them."""
        if self._buffers is None:
            self._buffers = self._new_buffers(tokens_B.device)
        buffers = self._buffers
        buffers.tokens_R[: len(tokens_B)].copy_(tokens_B)
        positions_R = torch.zeros(num_rows, dtype=torch.int64)
        positions_R[: len(tokens_B)] = self._cache.lengths - 1
        buffers.positions_R[:num_rows].copy_(positions_R)
        return buffers

    def _new_buffers(self, device: torch.device) -> _Buffers:
        """Returns buffers for as many rows as the cache has; the first token is a valid one."""
        tokens_R, positions_R = torch.zeros(
            (2, self._cache.num_slots), dtype=torch.int64, device=device
        )
        logits_RV = self._head.new_empty(self._cache.num_slots, len(self._head))
        return _Buffers(tokens_R, positions_R, logits_RV)

    def _captured(self, buffers: _Buffers, num_rows: int, num_tokens: int) -> Replay:
        """Captures the step of this size, and checks that it does the same when repeated."""
        if self._capture is None:
            self._capture = self._make_capture()
        layers = self._cache.within(num_rows, num_tokens)
        replay = self._capture(partial(_write_logits, self._family, layers, buffers, num_rows))
        logits_RV = buffers.logits_RV[:num_rows]
        expected_RV = logits_RV.clone()
        logits_RV.fill_(torch.inf)
        replay()
        _check_same(logits_RV, expected_RV)
        return replay


def _rounded_up(num_rows: int) -> int:
    """Returns the next power of two, or three quarters of it where they suffice."""
    power = 1 << (num_rows - 1).bit_length()
    return 3 * power // 4 if num_rows <= 3 * power // 4 else power


def _address(weight: Tensor | None) -> int:
    return 0 if weight is None else weight.data_ptr()


def _write_logits(
    family: Family,
    layers: Sequence[tuple[Tensor, Tensor]],
    buffers: _Buffers,
    num_rows: int,
) -> None:
    """The work that is captured: a step from the buffers into the buffers."""
    tokens_R, positions_R = buffers.tokens_R[:num_rows], buffers.positions_R[:num_rows]
    buffers.logits_RV[:num_rows].copy_(fixed_step(family, layers, tokens_R, positions_R))


def _check_same(found_RV: Tensor, expected_RV: Tensor) -> None:
    """Checks that a repeated step gave what the step itself did, but for rounding."""
    limit = torch.finfo(expected_RV.dtype).eps ** 0.5
    largest = float(expected_RV.abs().max())
    if not torch.allclose(found_RV, expected_RV, rtol=0.0, atol=limit * largest, equal_nan=True):
        raise RuntimeError("a captured step gives other logits than the step itself")
