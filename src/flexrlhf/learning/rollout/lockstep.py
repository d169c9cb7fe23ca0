"""Passes that all replicas of a sharded model make together, since each gathers weights of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

from flexrlhf.core.errors import RunFailed
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.parallelise import ParallelModel

Pass = Callable[[nn.Module], Tensor]
RunPass = Callable[[Pass], Tensor]
"""Makes one pass of a model, its weights being present."""

_HAS_ENDED, _GOES_ON, _HAS_FAILED = range(3)
_IDLE_TOKENS: Final = (1, 1)


@contextmanager
def lockstep(model: ParallelModel) -> Iterator[RunPass]:
    """Gives what makes this replica's passes, and ends when every replica has made its own.

    Before each pass the replicas tell each other whether one of them still has work, or failed;
    those without work make idle passes. A replica that fails between two passes takes the others
    with it, instead of leaving them to wait.

    Args:
        model: sharded over replicas, all of which enter together.
    """
    replica = _Replica(model)
    try:
        yield replica.run
        replica.finish()
    except Exception:
        replica.fail()
        raise


class _Replica:
    def __init__(self, model: ParallelModel) -> None:
        self._model = model
        self._hears = True

    def run(self, call: Pass) -> Tensor:
        self._agree(_GOES_ON)
        return self._together(call)

    def finish(self) -> None:
        while self._agree(_HAS_ENDED) == _GOES_ON:
            self._together(self._idle_pass)

    def fail(self) -> None:
        if self._hears:
            self._model.agree_max(_HAS_FAILED)

    def _agree(self, state: int) -> int:
        agreed = self._model.agree_max(state)
        if agreed == _HAS_FAILED:
            self._hears = False
            raise RunFailed(
                "Another replica of the actor failed while it generated.",
                "All replicas gather each other's weights, so all must go on.",
                "See what that replica says.",
            )
        return agreed

    def _together(self, call: Pass) -> Tensor:
        # Who fails inside a pass leaves the others in the midst of gathering: no word reaches them.
        self._hears = False
        logits = self._model.run(call)
        self._hears = True
        return logits

    def _idle_pass(self, module: nn.Module) -> Tensor:
        token_BT = torch.zeros(_IDLE_TOKENS, dtype=torch.int64, device=self._model.device)
        return pretrained(module).base_model(input_ids=token_BT, use_cache=False).last_hidden_state
