"""One worker's part in scoring pairs: the reference's replicas share them, whoever trains asks.

Every worker has all rows and finds by itself which pairs an iteration has and who scores which, so
only what the reference says goes from worker to worker.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from flexrlhf.core.errors import TransferLost
from flexrlhf.core.names import Role
from flexrlhf.learning.data.collation import item_tokens
from flexrlhf.learning.data.preferences import PreferencePair
from flexrlhf.learning.models.parallelise import ParallelModel
from flexrlhf.learning.transport.parcel import Parcel, ParcelLike
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.exchange import HELD_OUT, Ask
from flexrlhf.runtime.item_source import GivenItems, RowDraw, counts_of
from flexrlhf.runtime.measurements import Measurements
from flexrlhf.runtime.scored_pairs import (
    REFERENCE_FIELD,
    PairLogprobs,
    PairScorer,
    with_reference,
)
from flexrlhf.runtime.shares import balanced_shares

PREFIX: Final = "pairs"
_SCORER: Final[Role] = "reference"


@dataclass(slots=True)
class DevicePairs(GivenItems):
    """Draws pairs, scores this replica's share of them, and gathers what the others say."""

    device_map: DeviceMap
    rank: int
    ask: Ask
    draw: RowDraw
    held_out_rows: Sequence[PreferencePair]
    reference: ParallelModel | None
    """None where the worker holds nothing of it."""
    scorer: PairScorer
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _said: dict[int, list[PairLogprobs]] = field(
        default_factory=dict[int, list[PairLogprobs]], init=False
    )
    """What the reference says of this replica's share, by iteration."""
    _scored: dict[int, list[PreferencePair]] = field(
        default_factory=dict[int, list[PreferencePair]], init=False
    )
    """All pairs of an iteration."""

    def run(self, task: Task) -> Measurements:
        """Carries out one task and returns what it measured."""
        match task:
            case Task(operation="prepare"):
                return counts_of(self._rows(task.iteration))
            case Task(operation="logprobs", role="reference"):
                self._score(task.iteration)
                return {}
            case _:
                raise ValueError(f"No work on pairs: {task}.")

    def items_of(self, iteration: int) -> list[PreferencePair]:
        """Returns the scored pairs of an iteration, from whoever scored them if need be."""
        with self._lock:
            scored = self._scored.get(iteration)
        if scored is None:
            scored = self._gathered(iteration)  # without the lock: peers ask here meanwhile
            with self._lock:
                self._scored[iteration] = scored
        return scored

    def prefetch(
        self,
        transfer: Transfer,
        sources: Sequence[Task],
        targets: Sequence[Task],  # noqa: ARG002 - training alone takes over what was scored
    ) -> None:
        """Takes over what a transfer brings to training; rows are here already."""
        if any(source.operation == "logprobs" for source in sources):
            self.items_of(transfer.iteration)

    def answer_held_out(self) -> None:
        """Scores this replica's share of the held-out pairs, once: the reference is frozen."""
        if self.reference is not None and HELD_OUT not in self._said:
            self._score(HELD_OUT)

    @property
    def held_out(self) -> list[PreferencePair]:
        """The held-out pairs, scored."""
        return self.items_of(HELD_OUT)

    def forget(self, iteration: int) -> None:
        """Drops everything of an iteration."""
        with self._lock:
            self._said.pop(iteration, None)
            self._scored.pop(iteration, None)

    def handle(self, key: str, query: Mapping[str, Any]) -> ParcelLike:
        """Answers a peer with what the reference says here.

        Raises:
            TransferLost: it said nothing of the iteration.
        """
        with self._lock:
            said = self._said.get(query["iteration"])
        if said is None:
            raise TransferLost(
                f"Worker {self.rank} has no {key} of {dict(query)}.",
                "A worker is asked for what its finished tasks made.",
                "This is a fault of the program: please report it with the run's log.",
            )
        tokens = [row_T for pair in said for row_T in pair]
        return Parcel({}, {REFERENCE_FIELD: torch.cat(tokens)} if tokens else {})

    def _rows(self, iteration: int) -> Sequence[PreferencePair]:
        return self.held_out_rows if iteration == HELD_OUT else self.draw.of(iteration)

    def _shares(self, rows: Sequence[PreferencePair]) -> list[list[int]]:
        """Positions of the pairs that each replica of the reference scores."""
        replicas = self.device_map.plan.placement[_SCORER].data_parallel
        speeds = self.device_map.replica_speeds(_SCORER)
        return balanced_shares([item_tokens(row) for row in rows], replicas, speeds)

    def _score(self, iteration: int) -> None:
        assert self.reference is not None, "the device map puts scoring where the role is"
        rows = self._rows(iteration)
        share = self._shares(rows)[self.device_map.replica(_SCORER, self.rank)]
        said = self.scorer.logprobs(self.reference, [rows[place] for place in share])
        with self._lock:
            self._said[iteration] = said

    def _gathered(self, iteration: int) -> list[PreferencePair]:
        rows = self._rows(iteration)
        found: dict[int, PairLogprobs] = {}
        ranks = self.device_map.scorers(_SCORER)
        for rank, share in zip(ranks, self._shares(rows), strict=True):
            query = {"iteration": iteration}
            key = f"{PREFIX}/{REFERENCE_FIELD}"
            parcel = self.handle(key, query) if rank == self.rank else self.ask(rank, key, query)
            found |= zip(share, _cut(parcel, [rows[place] for place in share]), strict=True)
        return with_reference(rows, [found[place] for place in range(len(rows))])


def _cut(parcel: ParcelLike, pairs: Sequence[PreferencePair]) -> list[PairLogprobs]:
    """Returns what a parcel says of each pair."""
    if not pairs:
        return []
    lengths = [length for pair in pairs for length in pair.num_tokens]
    rows = torch.split(parcel.tensors[REFERENCE_FIELD], lengths)
    return list(zip(rows[0::2], rows[1::2], strict=True))
