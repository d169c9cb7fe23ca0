"""What speculation is expected to gain, against a simulated run of proposals and sums by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.decoding import Decoder
from flexrlhf.planning.costs.groups import tensor_group
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.memory import Engine, generation_bytes
from flexrlhf.planning.costs.shape_catalogue import shape_named
from flexrlhf.planning.costs.speculation import Speculation


@pytest.mark.parametrize(("acceptance", "most"), [(0.7, 4), (0.2, 3), (1.0, 5), (0.0, 2)])
def test_tokens_of_a_step_are_those_of_drawn_steps(acceptance: float, most: int) -> None:
    draw = random.Random(1)
    tokens = 0
    num_steps = 20_000
    for _ in range(num_steps):
        right = 0
        while right < most and draw.random() < acceptance:
            right += 1
        tokens += right + 1
    found = Speculation(most, acceptance).tokens_per_step
    assert found == pytest.approx(tokens / num_steps, rel=0.02)


def decoder(speculation: Speculation | None) -> Decoder:
    cluster = Cluster.uniform("A100-80G", nodes=1, devices_per_node=1)
    alone = tensor_group(cluster, (0,), Layout())
    from flexrlhf.planning.costs.calibration import DEFAULT

    return Decoder(
        HeldModel(shape_named("llama-7b")),
        Engine(speculation=speculation),
        cluster.device_type(0),
        DEFAULT,
        alone,
        alone,
    )


def test_few_answers_gain_and_many_lose() -> None:
    """Few rows wait for weights, which are read once for all tokens; many wait for products."""
    plain, speculating = decoder(None), decoder(Speculation(4, 0.5))
    few, many = (plain.step_s(rows, 100) / speculating.step_s(rows, 100) for rows in (1, 2048))
    assert few == pytest.approx(Speculation(4, 0.5).tokens_per_step, rel=0.02)
    assert many < 1


def test_a_draft_model_takes_a_step_of_its_own_for_each_token() -> None:
    draft = HeldModel(shape_named("qwen2.5-0.5b"))
    free, drafted = Speculation(3, 0.8), Speculation(3, 0.8, draft)
    alone_s = replace(decoder(None), model=draft).step_s(2, 50)
    added_s = decoder(drafted).step_s(2, 50) - decoder(free).step_s(2, 50)
    assert added_s == pytest.approx(3 * alone_s / free.tokens_per_step)


def test_a_draft_that_is_a_role_already_takes_no_more_memory() -> None:
    actor, draft = HeldModel(shape_named("llama-7b")), HeldModel(shape_named("qwen2.5-0.5b"))

    def held(*, holds_draft: bool) -> float:
        engine = Engine(speculation=Speculation(3, 0.8, draft, holds_draft=holds_draft))
        return sum(generation_bytes(actor, Layout(), engine, samples=8, tokens=512).values())

    assert held(holds_draft=True) - held(holds_draft=False) == draft.weight_bytes
