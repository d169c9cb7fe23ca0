"""Three workers hand each other samples and scores, before a checkpoint and after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.errors import TransferLost
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.transport.buffer import ExperienceBuffer
from flexrlhf.learning.transport.parcel import Parcel
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.shape import IterationShape
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.exchange import ExperienceExchange

SPEC = algorithm_spec("grpo")
PLAN = Plan(
    1,
    "custom",
    feasible=True,
    why="",
    placement={
        "actor": RolePlacement((0,)),
        "shadow_actor": RolePlacement((1,)),
        "reward": RolePlacement((1,)),
        "reference": RolePlacement((2,)),
    },
)
SHAPE = IterationShape(4, rollout_micro_batches=2, max_staleness=1)


class Exchanges:
    """One exchange per worker, which ask each other directly."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        buffers = [(ExperienceBuffer(2, 4), ExperienceBuffer(1, 1)) for _ in range(3)]
        self.of = [
            ExperienceExchange(
                DeviceMap(PLAN, SPEC), rank, self.ask, prompt_of, buffer=buffer, held_out=held_out
            )
            for rank, (buffer, held_out) in enumerate(buffers)
        ]

    def ask(self, rank: int, key: str, query: Mapping[str, Any]) -> Parcel:
        self.asked.append((key, query["part"]))
        answer = self.of[rank].handle(key, query)
        return Parcel(answer.header, answer.tensors)

    def score(self, iteration: int, part: int) -> None:
        """Lets every role score what was generated on worker 1."""
        for role, rank in (("shadow_actor", 1), ("reference", 2), ("reward", 1)):
            samples = self.of[rank].share(iteration, part, role)
            name = "old_logprobs" if role == "shadow_actor" else "reference_logprobs"
            for sample in samples:
                if role == "reward":
                    sample.reward, sample.reward_parts = sample.sample_id / 8, {"length": 1.0}
                else:
                    sample.fields[name] = torch.full((sample.num_tokens,), float(sample.sample_id))
            fields = () if role == "reward" else (name,)
            self.of[rank].keep_scores(iteration, part, role, samples, fields)


def prompt_of(sample_id: int) -> Prompt:
    return Prompt(sample_id, (1,), str(sample_id))


def sample(sample_id: int) -> Sample:
    tokens = torch.arange(3 + sample_id % 2)
    fields = {"logprobs": tokens / 4.0, "sampling_logprobs": tokens / 8.0}
    mask = tokens > 0
    return Sample(sample_id, prompt_of(sample_id), tokens, 1, mask, "x", True, 2, fields)


@pytest.fixture
def generated() -> Exchanges:
    """A rollout in two parts, which hold answers in the order of their ends."""
    exchanges = Exchanges()
    exchanges.of[1].keep_generated(3, 0, [sample(15)])
    exchanges.of[1].keep_generated(3, 0, [sample(12)])
    exchanges.of[1].keep_generated(3, 1, [sample(14), sample(13)])
    return exchanges


def assert_whole(samples: list[Sample]) -> None:
    assert [s.sample_id for s in samples] == [12, 13, 14, 15]
    for one in samples:
        assert torch.equal(one.tokens, sample(one.sample_id).tokens)
        assert torch.equal(one.fields["logprobs"], sample(one.sample_id).fields["logprobs"])
        for name in ("old_logprobs", "reference_logprobs"):
            assert one.fields[name].tolist() == [one.sample_id] * one.num_tokens
        assert (one.reward, one.reward_parts) == (one.sample_id / 8, {"length": 1.0})
        assert one.weight_version == 2


def test_the_barrier_gathers_what_others_made(generated: Exchanges):
    for part in (0, 1):
        generated.score(3, part)
    assert_whole(generated.of[0].gather(3, 2, SPEC.scored))


def test_a_peer_that_may_generate_again_is_asked_once_for_a_part(generated: Exchanges):
    for part in (0, 1):
        for _ in range(2):  # as two roles on one worker do
            generated.of[2].share(3, part, "reference")
        generated.of[2].gather_part(3, part, ())
    wanted = ("experience/lengths", "experience/samples")
    assert generated.asked == [(key, part) for part in (0, 1) for key in wanted]


def test_what_was_done_before_a_checkpoint_is_there_after_it(generated: Exchanges):
    generated.score(3, 0)
    generated.of[1].keep_generated(4, 0, [sample(16)])  # whose task is not over
    tasks = iteration_graph(SPEC, PLAN, SHAPE, 3).tasks
    done = [t for t in tasks if t.stage == "generate" or (t.stage, t.micro_batch) == ("score", 0)]
    resumed = Exchanges()
    for before, after in zip(generated.of, resumed.of, strict=True):
        state = before.state(done)
        after.restore(Parcel(json.loads(json.dumps(state.header)), state.tensors))
    assert [exchange.held() for exchange in resumed.of] == [{}, {3: 4}, {}]
    resumed.score(3, 1)
    assert_whole(resumed.of[0].gather(3, 2, SPEC.scored))


def test_workers_hold_no_more_than_two_iterations(generated: Exchanges):
    for iteration in (4, 5):
        ids = range(4 * iteration, 4 * iteration + 4)
        generated.of[1].keep_generated(iteration, 0, [sample(number) for number in ids])
    assert generated.of[1].held() == {4: 4, 5: 4}
    with pytest.raises(TransferLost, match="has no room"):
        generated.of[1].keep_generated(5, 1, [sample(99)])
    with pytest.raises(TransferLost, match="has no experience/lengths"):
        generated.of[0].share(3, 0, "actor")
