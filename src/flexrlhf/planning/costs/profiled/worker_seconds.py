"""Seconds of one role that several processes hold together, on one machine or joined ones.

Replicas divide sequences as a run does; a task ends when its slowest replica ends. What runs beside
it is not counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from flexrlhf.planning.costs.continuous import Ends
from flexrlhf.planning.costs.held_model import DTYPE_BYTES, HeldModel
from flexrlhf.planning.costs.layout import Layout, packs
from flexrlhf.planning.costs.profiled.batches import PassLimit, SequenceLength, cut
from flexrlhf.planning.costs.profiled.constants import ProfiledCosts, RowSpeed, WidthSpeed
from flexrlhf.planning.costs.profiled.seconds import ModelSeconds
from flexrlhf.planning.costs.profiled.wires import Wire, Wires
from flexrlhf.planning.costs.profiled.work import RunWork
from flexrlhf.planning.costs.profiled.worker_costs import GroupCost, WorkerCosts

_SUMS: Final = 2
"""Of a layer that is cut over processes: behind attention and behind the MLP, each way."""
_UNDER_WAY: Final = 4
"""Passes without gradients per pipeline stage that go together, as the runtime groups them."""
_WEIGHTS_SHARDED: Final = 3
_GRADIENTS_SHARDED: Final = 2
_SUM_ROUNDS: Final = 2
"""Around a ring, until every process has the sum; gloo adds up for one alone in the same way."""
_STEP_MESSAGES: Final = 4
"""Counts, norms and metrics of a step of the optimiser."""


def dealt(sequences: Sequence[SequenceLength], shares: int) -> list[list[SequenceLength]]:
    """Returns sequences divided between replicas, each with about as many tokens.

    Source: `balanced_shares`, which divides those of a run.
    """
    room = -(-len(sequences) // shares)
    held: list[list[SequenceLength]] = [[] for _ in range(shares)]
    tokens = [0.0] * shares
    for sequence in sorted(sequences, key=lambda s: -s.tokens):
        share = min((s for s in range(shares) if len(held[s]) < room), key=lambda s: tokens[s])
        held[share].append(sequence)
        tokens[share] += sequence.tokens
    return held


@dataclass(frozen=True)  # Without slots: what follows from it is kept.
class WorkerSeconds:
    """One role in its place."""

    model: HeldModel
    layout: Layout
    num_ranks: int
    engine_tensor: int
    per_token: bool
    """Sharded weights are gathered for every token that is generated."""
    costs: WorkerCosts
    wires: Wires = field(default_factory=Wires)
    reads_ends: bool = False
    """Whether it says something of the last token of a sequence, as a reward model does."""

    def generate(self, answers: Sequence[SequenceLength], work: RunWork) -> float:
        """Returns the seconds in which the role's replicas of the engine answer."""
        shares = [self._share(answers, replica) for replica in range(self._num_engines)]
        seconds = max(self._generated(share, work, None).last_s for share in shares if share)
        return seconds + self._gathered_s

    def stream(
        self, parts: Sequence[Sequence[SequenceLength]], work: RunWork
    ) -> list[tuple[list[SequenceLength], float]]:
        """Returns the parts of a rollout as they stream out of the engines, and their seconds.

        The answers of all parts begin in order, as many at a time as a replica has in a part; the
        k-th part holds those that end k-th.
        """
        streamed: list[list[SequenceLength]] = [[] for _ in parts]
        seconds = [0.0 for _ in parts]
        for replica in range(self._num_engines):
            shares = [self._share(part, replica) for part in parts]
            counts = [len(share) for share in shares]
            answers = [answer for share in shares for answer in share]
            if answers:
                ended = self._generated(answers, work, max(counts))
                seconds = list(map(max, seconds, ended.parts_s(counts)))
                order = iter(ended.order)
                for part, count in zip(streamed, counts, strict=True):
                    part.extend(answers[next(order)] for _ in range(count))
        return [
            (part, taken_s + self._gathered_s)
            for part, taken_s in zip(streamed, seconds, strict=True)
        ]

    def score(self, sequences: Sequence[SequenceLength], limit: PassLimit, work: RunWork) -> float:
        """Returns the seconds in which the replicas read sequences without gradients."""
        shares = [cut(share, limit) for share in dealt(sequences, self.layout.data) if share]
        passes = max(map(len, shares))
        seconds = max(self._split(self.layout.tensor).score(b, work.rows_per_item) for b in shares)
        tokens = max(sum(part.tokens for part in bins) for bins in shares)
        seconds += self._sums_s(self.layout.tensor, passes, tokens, 1, self.wires.tensor)
        seconds = self._staged_s(seconds, min(passes, _UNDER_WAY * self.layout.pipeline))
        seconds += self._handed_s(passes, tokens, 1)
        if self.layout.zero_stage == _WEIGHTS_SHARDED and self._is_sharded:
            seconds += passes * self._gather_s
        elif self._shards_gradients:
            seconds += self._gather_s
        return seconds

    def train(self, sequences: Sequence[SequenceLength], index: int, work: RunWork) -> float:
        """Returns the seconds of one of a mini-batch's passes, with gradients."""
        bins = [cut(share, work.limit) for share in dealt(sequences, self.layout.data) if share]
        parts = [of_replica[index] for of_replica in bins if index < len(of_replica)]
        if not parts:  # the graph has as many as there can be
            return 0.0
        split = self._split(self.layout.tensor)
        seconds = max(split.train(part, work.rows_per_item) for part in parts)
        tokens = max(part.tokens for part in parts)
        seconds += self._sums_s(self.layout.tensor, 1, tokens, 2, self.wires.tensor)
        seconds = self._staged_s(seconds, max(map(len, bins))) + self._handed_s(1, tokens, 2)
        if self._is_sharded and self.layout.zero_stage >= _GRADIENTS_SHARDED:
            is_whole = self.layout.zero_stage == _WEIGHTS_SHARDED
            extra = self._group.trains if is_whole else self._group.reduces
            seconds += extra.seconds(self._layers, self.model.gathered_bytes)
            seconds += self._sharded_wire_s(gathers=2 if is_whole else 0)
        return seconds

    def update(self) -> float:
        """Returns the seconds of an optimiser step, sums over replicas included."""
        layout, model = self.layout, self.model
        split = layout.tensor * layout.pipeline
        parts = split * (layout.shard if layout.zero_stage > 0 else 1)
        costs = self.costs.costs
        others_s = costs.wholes.train * model.trainable_params * costs.update.param_s
        seconds = ModelSeconds(model, costs).update() - others_s * (1 - 1 / parts)
        if self.num_ranks == 1:
            return seconds
        seconds += self._group.step_s + self.wires.data.round_s(0.0, _STEP_MESSAGES)
        if layout.data == 1:
            return seconds
        num_bytes = model.gradient_bytes / split
        if layout.zero_stage < _GRADIENTS_SHARDED:
            seconds += _SUM_ROUNDS * self.wires.data.round_s(num_bytes)
        if layout.zero_stage == 0:
            # Put together in buckets for the sum, and read from them again.
            copied_s = 2 * num_bytes / self.costs.costs.memory.read_bandwidth
            return seconds + num_bytes * self._group.sum_byte_s + copied_s
        if layout.zero_stage == 1:
            return seconds + num_bytes * self._group.share_byte_s
        if layout.zero_stage == _GRADIENTS_SHARDED:
            return seconds + self._gather_s
        return seconds

    @cached_property
    def _group(self) -> GroupCost:
        return self.costs.group(self.num_ranks)

    @cached_property
    def _gather_s(self) -> float:
        """Seconds by which a pass is longer whose weights are gathered for it."""
        num_bytes = self.model.gathered_bytes
        wire_s = self.wires.shard.round_s(num_bytes, self._layers + 1)
        return self._group.gathers.seconds(self._layers, num_bytes) + wire_s

    def _sharded_wire_s(self, gathers: int) -> float:
        """Seconds in which weights are gathered, and gradients summed, between machines.

        Args:
            gathers: of the weights; the second is for the backward pass.
        """
        wire, messages = self.wires.shard, self._layers + 1
        weights_s = wire.round_s(self.model.gathered_bytes, messages)
        sums_s = wire.round_s(self.model.gradient_bytes, messages)
        return gathers * weights_s + _SUM_ROUNDS * sums_s

    @property
    def _layers(self) -> int:
        return self.model.shape.layers

    @property
    def _is_sharded(self) -> bool:
        return self.layout.shard > 1

    @property
    def _shards_gradients(self) -> bool:
        """Whether weights are whole again only when a pass first asks for them."""
        is_trained = self.model.is_trained
        return is_trained and self._is_sharded and self.layout.zero_stage == _GRADIENTS_SHARDED

    @property
    def _shards_weights(self) -> bool:
        whole = self.layout.zero_stage == _WEIGHTS_SHARDED and self._is_sharded
        return whole or self._shards_gradients

    def _split(self, tensor: int) -> ModelSeconds:
        """The model cut over so many processes; the launches of its layers are the same."""
        return ModelSeconds(
            self.model,
            _with_speed(self.costs.costs, float(tensor)),
            packs=packs(self.model, self.layout),
            reads_ends=self.reads_ends,
        )

    @property
    def _num_engines(self) -> int:
        return self.num_ranks // self.engine_tensor

    def _share(self, answers: Sequence[SequenceLength], replica: int) -> Sequence[SequenceLength]:
        return answers[replica :: self._num_engines]

    @property
    def _gathered_s(self) -> float:
        """Seconds in which weights are brought together before answers are generated."""
        return self._gather_s if self._shards_weights and not self.per_token else 0.0

    def _generated(
        self, answers: Sequence[SequenceLength], work: RunWork, at_once: int | None
    ) -> Ends:
        """When the answers of one replica end."""
        return self._split(self.engine_tensor).generate(
            answers,
            work.samples_per_prompt,
            at_once=min(work.max_sequences or len(answers), at_once or len(answers)),
            together_s=self._together_s,
            speculation=work.speculation,
        )

    def _together_s(self, rows: float) -> float:
        """Seconds by which a pass of an engine is longer that reads a token of so many answers."""
        seconds = self._sums_s(self.engine_tensor, 1, rows, 1, self.wires.engine)
        if self._shards_weights and self.per_token:
            seconds += self._gather_s
        return seconds

    def _staged_s(self, seconds: float, under_way: int) -> float:
        """Returns the seconds of passes through the stages of a pipeline.

        Args:
            seconds: of the same passes through the whole model.
            under_way: passes that fill the stages together; the stages wait for the first and the
                last of them.
        """
        stages = self.layout.pipeline
        return seconds / stages * (under_way + stages - 1) / under_way

    def _handed_s(self, passes: float, tokens: float, ways: int) -> float:
        """Returns the seconds in which passes are handed from one stage to the next.

        Args:
            passes: through the stages.
            tokens: of all of them.
            ways: 1 forward; 2 forward and backward.
        """
        if self.layout.pipeline == 1:
            return 0.0
        group = self.costs.group(2)
        num_bytes = tokens * self.model.shape.hidden * DTYPE_BYTES[self.model.compute_dtype]
        wire = self.wires.stages
        message_s, byte_s = wire.latency_s + group.message_s, 1 / wire.rate + group.sum_byte_s
        return ways * (passes * message_s + num_bytes * byte_s)

    def _sums_s(self, tensor: int, passes: float, tokens: float, ways: int, wire: Wire) -> float:
        """Seconds of the sums over the processes of a replica.

        Args:
            tensor: processes.
            passes: over the layers.
            tokens: that pass them in all.
            ways: 1 forward; 2 forward and backward.
            wire: between them.
        """
        if tensor == 1:
            return 0.0
        group, shape = self.costs.group(tensor), self.model.shape
        sums = _SUMS * ways * self._layers
        num_bytes = tokens * shape.hidden * DTYPE_BYTES[self.model.compute_dtype]
        wire_s = _SUM_ROUNDS * wire.round_s(num_bytes, passes)
        return sums * (passes * group.message_s + num_bytes * group.sum_byte_s + wire_s)


def _with_speed(costs: ProfiledCosts, factor: float) -> ProfiledCosts:
    """Returns constants with which products and caches take a part of their time."""
    if factor == 1.0:
        return costs
    memory = replace(costs.memory, cache_bandwidth=costs.memory.cache_bandwidth * factor)
    return replace(
        costs,
        widths=tuple(WidthSpeed(s.width, s.score * factor, s.train * factor) for s in costs.widths),
        rows=tuple(RowSpeed(s.rows, s.speed * factor) for s in costs.rows),
        memory=memory,
    )
