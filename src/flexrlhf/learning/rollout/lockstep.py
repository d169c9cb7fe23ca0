"""Passes that all replicas of a sharded model make together, since each gathers weights of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.parallelise import ParallelModel

T = TypeVar("T")


class Lockstep:
    """Runs a replica's passes, and then idle ones until every replica has made its own.

    Before each pass the replicas tell each other whether one of them still has work.

    Args:
        model: sharded over replicas; a model that needs no lockstep runs freely.
    """

    def __init__(self, model: ParallelModel) -> None:
        self._model = model

    def run(self, call: Callable[[nn.Module], T]) -> T:
        """Makes one pass of this replica's own."""
        self._model.agree_max(1)
        return self._model.run(call)

    def finish(self) -> None:
        """Takes part in the passes of the other replicas until these have ended too."""
        while self._model.agree_max(0):
            self._model.run(self._idle_pass)

    def _idle_pass(self, module: nn.Module) -> None:
        token_BT = torch.zeros(1, 1, dtype=torch.int64, device=self._model.device)
        pretrained(module).base_model(input_ids=token_BT, use_cache=False)
