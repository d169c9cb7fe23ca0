"""Costs of one process: curves, passes, generation and bytes, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.profiled.batches import (
    Bin,
    PassLimit,
    SequenceLength,
    cut,
    likely_sequences,
)
from flexrlhf.planning.costs.profiled.constants import (
    LogitCost,
    MemoryConstants,
    PassCost,
    ProfiledCosts,
    RowSpeed,
    UpdateCost,
    WholeCost,
    WidthSpeed,
)
from flexrlhf.planning.costs.profiled.memory import generation_bytes, score_bytes, train_bytes
from flexrlhf.planning.costs.profiled.seconds import ModelSeconds
from flexrlhf.planning.costs.shape import ModelShape

SHAPE = ModelShape(
    "tiny",
    layers=2,
    hidden=4,
    ffn=8,
    heads=2,
    kv_heads=1,
    head_dim=2,
    vocab=10,
    tied_embeddings=True,
)
"""A layer has 4*4 + 2*4*2 + 4*4 + 3*4*8 = 144 weights."""
COSTS = ProfiledCosts(
    dtype="float32",
    task_s=0.5,
    answer_s=0.01,
    barrier_s=0.001,
    score=PassCost(1.0, 0.1, 0.01),
    train=PassCost(2.0, 0.2, 0.02),
    decode=PassCost(0.3, 0.03, 0.003),
    widths=(WidthSpeed(4, 1000.0, 500.0), WidthSpeed(16, 4000.0, 4000.0)),
    rows=(RowSpeed(1, 400.0), RowSpeed(4, 1600.0)),
    logits=LogitCost(0.001, 0.002, 0.003),
    update=UpdateCost(1.0, 0.1, 0.01),
    memory=MemoryConstants(2e3, 1e3, 1e6, 0.5, 6.0),
)
ACTOR = HeldModel(
    SHAPE, weight_dtype="float32", compute_dtype="float32", is_trained=True, recomputes=False
)
CRITIC = HeldModel(
    SHAPE, head="value", weight_dtype="float32", compute_dtype="float32", recomputes=False
)


def test_speeds_between_and_beyond_the_measured_points():
    assert COSTS.score_speed(8) == pytest.approx(2000.0)  # half-way from 4 to 16 in the logarithm
    assert COSTS.train_speed(2) == 500.0
    assert COSTS.train_speed(64) == 4000.0
    # A layer of width 4 computes at a quarter of the widest one's speed, with few rows too.
    assert COSTS.row_speed(2, 4) == pytest.approx(800.0 / 4)
    assert COSTS.row_speed(2, 99) == pytest.approx(800.0)


def test_more_cores_compute_faster_and_the_host_does_not():
    faster = COSTS.faster(2.0)
    assert faster.score_speed(4) == 2000.0
    assert faster.logits.draw_s == 0.0015
    assert faster.update == UpdateCost(1.0, 0.1, 0.005)
    assert faster.score == COSTS.score


def test_a_pass_is_cut_as_a_run_cuts_it():
    sequences = [SequenceLength(2, length) for length in (1, 2, 3, 4, 5)]
    assert cut(sequences, PassLimit(max_tokens=14)) == [Bin(2, 7, 9), Bin(2, 5, 5), Bin(1, 3, 1)]
    assert [part.items for part in cut(sequences, PassLimit(max_items=3))] == [3, 2]


def test_likely_sequences_have_the_means_of_both_distributions():
    prompt, response = Lengths((4.0, 8.0)), Lengths(tuple(float(n) for n in range(1, 11)))
    made = likely_sequences(100, prompt, response)
    assert sum(s.prompt for s in made) / 100 == pytest.approx(6.0)
    assert sum(s.response for s in made) / 100 == pytest.approx(5.5, rel=0.02)


def test_scoring_adds_up_host_layers_and_head():
    part = Bin(items=2, longest=3.0, responses=4.0)
    host = 1.0 + 2 * 0.1 + 2 * 0.01
    flops = 6 * (2 * 2 * 144 + 2 * 2 * 4 * 2 * 3)  # weights, then scores and sums of 3 positions
    speed = 1600 / 4  # rows beyond the last point, a quarter for the width
    head = 4 * 10 * (2 * 4 / 1000 + 0.001)
    assert ModelSeconds(ACTOR, COSTS).score([part]) == pytest.approx(host + flops / speed + head)
    bare = ModelSeconds(CRITIC, COSTS).score([part])
    assert bare == pytest.approx(host + flops / speed)


def test_training_is_three_passes_and_four_of_the_heads_early_chunks():
    part = Bin(items=2, longest=3.0, responses=4.0)
    host = 2.0 + 2 * 0.2 + 2 * 0.02
    flops = 6 * (2 * 2 * 144 + 2 * 2 * 4 * 2 * 3)
    head = 4 * 10 * (3 * 2 * 4 / 1000 + 0.002)
    found = ModelSeconds(ACTOR, COSTS).train(part)
    assert found == pytest.approx(host + 3 * flops / 500 + head)
    longer = ModelSeconds(ACTOR, COSTS).train(replace(part, responses=1024.0 + 6))
    again = 6 * 10 * (2 * 4 / 1000 + 0.001)
    assert longer - found == pytest.approx((1030 / 4 - 1) * head + again)


def test_generation_reads_prompts_once_and_decodes_while_answers_run():
    wave = [SequenceLength(3, 1), SequenceLength(3, 2)]
    prompt_flops = 3 * (2 * 2 * 144 + 2 * 2 * 4 * 2 * 3)
    prefill = 1.0 + 2 * 0.1 + 0.01 + prompt_flops / (1200 / 4)  # one prompt of three rows
    first_tokens = 2 * 0.01 + 2 * 10 * 0.003
    # One answer has a second token: a step of one row that attends to 3 + 1 tokens.
    cache = 4.0 * (2 * 2 * 1 * 2) * 4 / 1e3
    step = 0.3 + 2 * 0.03 + 0.003 + (2 * 2 * 144 + 2 * 4 * 10) / (400 / 4) + cache + 10 * 0.003
    found = ModelSeconds(ACTOR, COSTS).generate(wave, samples_per_prompt=2)
    assert found.order == (0, 1)
    assert found.seconds == pytest.approx((prefill + first_tokens, prefill + first_tokens + step))


def test_an_update_touches_every_parameter():
    # 10 * 4 in the table, 2 * 144 in layers; 7 matrices a layer, 2 norms a layer, and 2.
    assert ModelSeconds(ACTOR, COSTS).update() == pytest.approx(1.0 + 0.1 * 20 + 0.01 * 328)


def test_whole_pieces_take_longer_than_their_parts_and_waits_for_others_do_not():
    costs = replace(COSTS, wholes=WholeCost(generate=1.5, score=1.25, train=2.0))
    parts, wholes = ModelSeconds(ACTOR, COSTS), ModelSeconds(ACTOR, costs)
    bin_ = Bin(items=2, longest=3.0, responses=4.0)
    assert wholes.score([bin_]) == pytest.approx(1.25 * parts.score([bin_]))
    assert wholes.train(bin_) == pytest.approx(2.0 * parts.train(bin_))
    assert wholes.update() == pytest.approx(2.0 * parts.update())
    answers = [SequenceLength(3, 2)]
    alone_s = wholes.generate(answers, 1).last_s
    assert alone_s == pytest.approx(1.5 * parts.generate(answers, 1).last_s)
    together_s = wholes.generate(answers, 1, together_s=lambda _: 10.0).last_s
    assert together_s - alone_s == pytest.approx(20.0)  # the prompt's pass and a step


def test_bytes_of_a_first_and_of_a_later_training_pass():
    part = Bin(items=2, longest=3.0, responses=4.0)
    saved = 6 * 2 * (6 * 4 + 2 * 2 * 2 + 2 * 2 + 4 * 8) * 4  # tokens, layers, numbers, bytes
    saved += 6 * 3 * 4 * 4 + 4 * 4 * 4  # the last norm, and what the head reads of it
    logits = 4 * 10 * 4 * 6.0
    memory = COSTS.memory
    first = train_bytes(ACTOR, part, memory, is_first=True)
    assert first == pytest.approx(saved * 1.5 + logits + 10 * 4 * 4)
    later = train_bytes(ACTOR, part, memory, is_first=False)
    assert later == pytest.approx(saved * 1.5 + logits + 328 * 4)


def test_bytes_of_scoring_and_generation():
    part = Bin(items=2, longest=3.0, responses=4.0)
    assert score_bytes(CRITIC, part) == 6 * (3 * 8 + 2 * 4) * 4
    assert score_bytes(ACTOR, part) == 6 * (3 * 8 + 2 * 4) * 4 + 4 * 10 * 4 * 3
    cache = 2 * (3 + 200) * (2 * 2 * 1 * 2) * 4
    assert generation_bytes(ACTOR, 2, 3.0, 200) == cache + 2 * 10 * 28
