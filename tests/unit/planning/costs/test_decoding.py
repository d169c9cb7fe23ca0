"""Decode steps against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import DEFAULT
from flexrlhf.planning.costs.decoding import Decoder
from flexrlhf.planning.costs.groups import shard_group, tensor_group
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.memory import Engine
from flexrlhf.planning.costs.shape_catalogue import shape_named

CALIBRATION = replace(
    DEFAULT,
    decode_bandwidth=0.5,
    forward_efficiency=0.5,
    link_efficiency=1.0,
    decode_layer_s=1e-5,
    launch_s=2e-5,
    collective_s=1e-5,
    step_s=1e-3,
    overlap=0.0,
)
READ = 2 * (6_738_415_616 - 32000 * 4096)
"""Bytes of a 7B model that a step reads: all but the input table."""


def decoder(engine=None, devices=1, **changes):
    cluster = Cluster.uniform("A100-80G", nodes=1, devices_per_node=devices)
    engine = engine or Engine()
    layout = Layout(tensor=engine.tensor, data=devices // engine.tensor)
    sharded = Layout(data=devices, shard=devices, zero_stage=3)
    return Decoder(
        HeldModel(shape_named("llama-7b")),
        engine,
        cluster.device_type(0),
        replace(CALIBRATION, **changes),
        tensor_group(cluster, range(devices), layout),
        shard_group(cluster, range(devices), sharded),
    )


def test_a_small_batch_reads_weights_and_cache():
    cache = 4 * 100 * 2**19
    expected = (READ + cache) / (0.5 * 2039e9) + 32 * 1e-5 + 1e-3
    assert decoder().step_s(4, 100) == pytest.approx(expected)


def test_weights_in_int8_are_read_as_bytes_and_multiplied_no_faster():
    engine = Engine(rounds_weights=True)
    cache = 4 * 100 * 2**19
    expected = (READ / 2 + cache) / (0.5 * 2039e9) + 32 * 1e-5 + 1e-3
    assert decoder(engine).step_s(4, 100) == pytest.approx(expected)
    assert decoder(engine).step_s(1000, 10) == decoder().step_s(1000, 10)


def test_a_large_batch_is_bound_by_its_products():
    products_s = 1000 * READ / (0.5 * 312e12)  # two operations a weight, two bytes a weight
    cache_s = 1000 * 10 * 2**19 / (0.5 * 2039e9)
    assert decoder().step_s(1000, 10) == pytest.approx(
        products_s + cache_s + 32 * 1e-5 + 1e-3, rel=1e-3
    )


def test_a_host_that_launches_slowly_decides():
    engine = Engine(launches=45)
    slow = decoder(engine, launch_s=1e-4).step_s(1, 10)
    assert slow == pytest.approx(45 * 32 * 1e-4 + 1e-3)


def test_a_cache_written_anew_is_moved_three_times():
    plain = decoder(Engine()).step_s(4, 1000)
    copied = decoder(Engine(copies_cache=True)).step_s(4, 1000)
    assert copied - plain == pytest.approx(2 * 4 * 1000 * 2**19 / (0.5 * 2039e9))


def test_a_cache_that_heads_share_is_read_again_by_old_kernels():
    shape = shape_named("llama2-70b")  # 64 heads share 8
    once, often = (
        replace(decoder(Engine(cache_reads=reads)), model=HeldModel(shape)).step_s(8, 1000)
        for reads in (1, 4)
    )
    cache = 8 * 1000 * 2 * 80 * 8 * 128 * 2
    assert often - once == pytest.approx(3 * cache / (0.5 * 2039e9))


def test_weights_gathered_for_every_token_cost_a_ring_each():
    layout = Engine(mode="per_token")
    gathered = decoder(layout, devices=8).step_s(1, 10)
    held = decoder(Engine(), devices=8).step_s(1, 10)
    ring_s = 7 / 8 * 2 * 6_738_415_616 / 300e9 + 3 * 1.9e-6
    # Each of 32 layers has 211 million parameters: 5 fetches of at most 50 million, each with its
    # collective and its hooks.
    assert gathered - held == pytest.approx(ring_s + 32 * 5 * (1e-5 + 1e-4))


def test_tensor_parallelism_reduces_twice_a_layer():
    step_s = decoder(Engine(mode="tensor_parallel", tensor=8), devices=8).step_s(1, 0)
    ring_s = 2 * (7 / 8 * 4096 * 2 / 300e9 + 3 * 1.9e-6) + 1e-5
    expected = READ / 8 / (0.5 * 2039e9) + 64 * ring_s + 32 * 1e-5 + 1e-3
    assert step_s == pytest.approx(expected, rel=1e-6)


def test_a_static_batch_lasts_as_long_as_its_longest():
    one = decoder(Engine(continuous=False))
    lengths = Lengths((10.0, 20.0, 30.0, 100.0))
    seconds = one.decode_s(64, 64, Lengths.fixed(0), lengths)
    assert seconds == pytest.approx(100 * one.step_s(64, 50))


def test_a_continuous_batch_shrinks_as_sequences_end():
    one = decoder(decode_layer_s=0.0)
    seconds = one.decode_s(2, 2, Lengths.fixed(0), Lengths((10.0, 30.0)))
    assert seconds == pytest.approx(10 * one.step_s(2, 5) + 20 * one.step_s(1, 20))


def test_few_tokens_meet_few_experts():
    shape = shape_named("qwen3-30b-a3b")
    single = replace(decoder(), model=HeldModel(shape))
    weights = (single.step_s(1, 0) - 48 * 1e-5 - 1e-3) * 0.5 * 2039e9 / 2
    read = shape.num_active_params - shape.embedding_params
    assert weights == pytest.approx(read, rel=1e-6)


SKEWED = Lengths(tuple(float(n) for n in (10, 20, 30, 400)))


def test_equal_answers_stream_part_by_part():
    fixed = Lengths.fixed(50)
    parts = decoder().part_s(8, 3, 8, Lengths.fixed(100), fixed, per_prompt=4.0)
    prefill_s = decoder().prefill_s(2, Lengths.fixed(100))
    steps_s = sum(decoder().step_s(8, 100 + n) for n in range(1, 50))
    assert parts == pytest.approx([prefill_s + steps_s] * 3, rel=1e-3)


def test_a_long_answer_holds_nobody_back():
    prompt = Lengths.fixed(100)
    parts = decoder().part_s(8, 4, 8, prompt, SKEWED, per_prompt=1.0)
    whole_s = decoder().decode_s(8, 8, prompt, SKEWED) + decoder().prefill_s(8, prompt)
    assert parts[0] < whole_s / 4  # four parts of eight hold the short ones first
    assert sum(parts) < 0.7 * 4 * whole_s
    longest_s = sum(decoder().step_s(1, 100 + n) for n in range(1, 400))
    assert sum(parts) > longest_s


def test_many_answers_stream_as_few_do():
    prompt = Lengths.fixed(100)
    few = decoder().part_s(64, 4, 64, prompt, SKEWED, per_prompt=1.0)
    many = decoder().part_s(64 * 16, 4, 64 * 16, prompt, SKEWED, per_prompt=1.0)
    assert sum(few) < sum(many) < 16 * sum(few)
