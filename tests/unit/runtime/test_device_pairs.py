"""What the reference's replicas say of their shares is, put together, what one device says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.errors import TransferLost
from flexrlhf.learning.data.order import SeededOrder
from flexrlhf.learning.data.preferences import PreferencePair
from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.transport.parcel import Parcel
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.shape import IterationShape
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.device_pairs import DevicePairs
from flexrlhf.runtime.item_source import RowDraw
from flexrlhf.runtime.scored_pairs import PairScorer, ScoredPairs

SPEC = algorithm_spec("dpo")
PLAN = Plan(
    1,
    "custom",
    feasible=True,
    why="",
    placement={
        "actor": RolePlacement((0,)),
        "reference": RolePlacement((1, 2, 3), data_parallel=3),
    },
)
SHAPE = IterationShape(4)
SOURCE = ModelSource(
    architecture={
        "model_type": "llama",
        "vocab_size": 17,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "initializer_range": 0.3,
    },
    dtype="float64",
)
SCORER = PairScorer(40, nullcontext)


def pair(index: int) -> PreferencePair:
    generator = torch.Generator().manual_seed(index)
    chosen, rejected = (
        (1, 2, *torch.randint(17, (length,), generator=generator).tolist())
        for length in (2 + index % 4, 1 + index % 3)
    )
    return PreferencePair(index, chosen, rejected, num_prompt_tokens=2)


ROWS = [pair(index) for index in range(9)]
HELD_OUT = [pair(index) for index in range(20, 22)]
DRAW = RowDraw(ROWS, SeededOrder(len(ROWS), 5), 4)


class Workers:
    """One worker trains, three hold a replica of the reference each; they ask each other."""

    def __init__(self) -> None:
        self.asked = 0
        reference = load_policy(SOURCE)
        device_map = DeviceMap(PLAN, SPEC)
        self.of = [
            DevicePairs(
                device_map, rank, self.ask, DRAW, HELD_OUT, reference if rank else None, SCORER
            )
            for rank in range(4)
        ]

    def ask(self, rank: int, key: str, query: Mapping[str, Any]) -> Parcel:
        self.asked += 1
        answer = self.of[rank].handle(key, query)
        return Parcel(answer.header, answer.tensors)

    def score(self, iteration: int) -> None:
        for worker in self.of[1:]:
            worker.run(task("logprobs", iteration))


def task(operation: str, iteration: int) -> Task:
    tasks = iteration_graph(SPEC, PLAN, SHAPE, iteration).tasks
    return next(task for task in tasks if task.operation == operation)


def alone() -> ScoredPairs:
    return ScoredPairs(DRAW, HELD_OUT, load_policy(SOURCE), SCORER)


def assert_same(found, expected) -> None:
    assert list(found) == list(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.fields["reference_logprobs"],
            other.fields["reference_logprobs"],
            rtol=0,
            atol=1e-12,
        )


@pytest.mark.parametrize("iteration", [0, 3])
def test_shares_put_together_are_what_one_device_says(iteration):
    workers, expected = Workers(), alone()
    for operation in ("prepare", "logprobs"):
        expected.run(task(operation, iteration))
    counts = workers.of[0].run(task("prepare", iteration))
    assert counts["samples"].value == 4
    workers.score(iteration)
    assert_same(workers.of[0].items_of(iteration), expected.items_of(iteration))
    assert workers.asked == 3
    workers.of[0].items_of(iteration)
    assert workers.asked == 3  # a later epoch asks nobody


def test_a_transfer_brings_them_before_they_are_needed():
    workers = Workers()
    workers.score(0)
    graph = iteration_graph(SPEC, PLAN, SHAPE, 0)
    tasks = {task.name: task for task in graph.tasks}
    for transfer in graph.transfers:
        (rank,) = {0} if transfer.target_group == "actor" else {1}
        sources, targets = ([tasks[n] for n in t] for t in (transfer.sources, transfer.targets))
        workers.of[rank].prefetch(transfer, sources, targets)
    assert workers.asked == 3  # the rows themselves are everywhere
    workers.of[0].items_of(0)
    assert workers.asked == 3


def test_held_out_pairs_are_scored_once_and_a_replica_may_have_none_of_them():
    workers, expected = Workers(), alone()
    for _ in range(2):
        for worker in workers.of:
            worker.answer_held_out()
    assert_same(workers.of[0].held_out, expected.held_out)
    workers.of[0].forget(0)
    workers.of[0].held_out  # noqa: B018 - it is kept, however many iterations are forgotten
    assert workers.asked == 3


def test_what_was_not_scored_or_is_forgotten_is_not_there():
    workers = Workers()
    with pytest.raises(TransferLost, match="has no pairs/reference_logprobs"):
        workers.of[0].items_of(1)
    workers.score(1)
    for worker in workers.of:
        worker.forget(1)
    with pytest.raises(TransferLost):
        workers.of[0].items_of(1)
