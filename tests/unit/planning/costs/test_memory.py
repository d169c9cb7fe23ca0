"""Bytes of a role against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.planning.costs.calibration import DEFAULT
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.memory import (
    Engine,
    generation_bytes,
    resting_bytes,
    score_bytes,
    train_bytes,
)
from flexrlhf.planning.costs.profiled.constants import MemoryConstants
from flexrlhf.planning.costs.profiled.memory import in_processes
from flexrlhf.planning.costs.shape_catalogue import shape_named

PARAMS = 6_738_415_616  # LLaMA 7B, as published
SHAPE = shape_named("llama-7b")


@pytest.mark.parametrize(
    ("stage", "weights", "optimizer"),
    [(0, 1, 1), (1, 1, 8), (2, 1, 8), (3, 8, 8)],
)
def test_zero_shares_what_its_stage_says(stage, weights, optimizer):
    model = HeldModel(SHAPE, is_trained=True)
    found = resting_bytes(model, Layout(data=8, shard=8, zero_stage=stage))
    assert found["weights"] == pytest.approx(2 * PARAMS / weights)
    assert found["optimizer"] == pytest.approx(12 * PARAMS / optimizer)


def test_an_offloaded_optimiser_takes_no_device_memory():
    model = HeldModel(SHAPE, is_trained=True)
    assert "optimizer" not in resting_bytes(model, Layout(offload=True))


def test_four_unsharded_7b_models_take_the_54_gb_of_the_digest():
    whole = resting_bytes(HeldModel(SHAPE), Layout())["weights"]
    assert 4 * whole == pytest.approx(53.9e9, rel=0.001)


def test_packed_weights_are_there_again_while_generating_on_whole_devices_only():
    model = HeldModel(SHAPE, weight_dtype="float32", compute_dtype="float32")

    def packed(layout: Layout, engine: Engine) -> float:
        found = generation_bytes(model, layout, engine, samples=3, tokens=100)
        return found.get("packed weights", 0)

    assert packed(Layout(), Engine(packs_weights=True)) == 4 * PARAMS
    assert packed(Layout(), Engine()) == 0
    assert packed(Layout(tensor=2), Engine(tensor=2, packs_weights=True)) == 0
    assert packed(Layout(), Engine(mode="per_token", packs_weights=True)) == 0


def test_weights_in_int8_take_a_byte_each_beside_the_trainers_while_generating():
    model = HeldModel(SHAPE, weight_dtype="float32", compute_dtype="float32")
    found = generation_bytes(model, Layout(), Engine(rounds_weights=True), samples=3, tokens=100)
    assert found["int8 weights"] == PARAMS - 32000 * 4096  # the input table is not multiplied by
    assert "packed weights" not in found
    assert "int8 weights" not in generation_bytes(model, Layout(), Engine(), samples=3, tokens=100)


def test_kept_prefixes_lie_there_throughout():
    model = HeldModel(SHAPE, kept_prefix_tokens=1000)
    found = resting_bytes(model, Layout())
    assert found["kept prefixes"] == 1000 * 2**19  # half a mebibyte a token, as below
    assert "kept prefixes" not in resting_bytes(HeldModel(SHAPE), Layout())


def test_the_cache_of_a_7b_model_is_half_a_mebibyte_per_token():
    # kipp.ly: 2 * layers * heads * head width * 2 bytes = 0.5 MiB
    found = generation_bytes(HeldModel(SHAPE), Layout(), Engine(), samples=3, tokens=100)
    assert found["cache"] == 3 * 100 * 2**19


def test_a_split_cache_is_cut_by_its_heads_at_most():
    shape = shape_named("llama2-70b")  # 8 key-value heads
    model, engine = HeldModel(shape), Engine(mode="tensor_parallel", tensor=16)
    found = generation_bytes(model, Layout(data=16), engine, samples=1, tokens=1)
    assert found["cache"] == 2 * 80 * 8 * 128 * 2 / 8


def test_weights_gathered_for_every_token_keep_two_layers():
    model, layout = HeldModel(SHAPE), Layout(data=8, shard=8, zero_stage=3)
    found = generation_bytes(model, layout, Engine(mode="per_token"), samples=1, tokens=1)
    assert found["gathered layers"] == pytest.approx(2 * 2 * PARAMS / 32)
    assert "engine weights" not in found


def test_a_copy_without_stages_is_counted_though_both_layouts_have_two_parts():
    stages, halves = Layout(pipeline=2), Engine(mode="tensor_parallel", tensor=2)
    found = generation_bytes(HeldModel(SHAPE), stages, halves, samples=1, tokens=1)
    assert found["engine weights"] == pytest.approx(2 * PARAMS / 2)


def test_recomputation_keeps_a_layers_input_and_one_whole_layer():
    model = HeldModel(SHAPE, head="value", is_trained=True)
    found = train_bytes(model, Layout(), tokens=256, logit_tokens=1024)
    inputs = 32 * 256 * 4096 * 2
    # Two norms: input in float32, before and after the weight; queries, keys, values and output;
    # four of the MLP's width.
    one_layer = 256 * (2 * 4096 * (4 + 2 + 2) + 4 * 4096 * 2 + 4 * 11008 * 2)
    assert found["activations"] == inputs + one_layer


def test_without_recomputation_every_layer_is_kept_whole():
    model = HeldModel(SHAPE, head="value", is_trained=True, recomputes=False)
    found = train_bytes(model, Layout(), tokens=256, logit_tokens=1024)
    assert found["activations"] == 32 * 256 * (12 * 4096 + 4 * 11008) * 2


def test_logits_of_a_chunked_loss_are_those_of_a_chunk():
    model = HeldModel(SHAPE, is_trained=True)
    found = train_bytes(model, Layout(), tokens=8192, logit_tokens=1024)
    assert found["logits"] == 1024 * 32000 * 10


def test_a_value_head_has_no_logits():
    found = score_bytes(HeldModel(SHAPE, head="value"), Layout(), tokens=8192, logit_tokens=1024)
    assert "logits" not in found


def test_sharded_weights_travel_in_what_computes_with_them():
    layout = Layout(data=8, shard=8, zero_stage=3)
    whole = HeldModel(SHAPE, weight_dtype="float32", compute_dtype="bfloat16")
    found = score_bytes(whole, layout, tokens=1, logit_tokens=1)
    # Two layers of 2 bytes per parameter, though 4 lie on the devices.
    assert found["gathered layers"] == pytest.approx(2 * 2 * PARAMS / 32)


def test_zero_2_collects_a_bucket_of_gradients():
    model = HeldModel(SHAPE, is_trained=True)
    found = train_bytes(model, Layout(data=8, shard=8, zero_stage=2), tokens=1, logit_tokens=1)
    assert found["whole gradients"] == 2 * 5e8
    adapters = HeldModel(SHAPE, is_trained=True, lora_rank=8)
    found = train_bytes(adapters, Layout(data=8, shard=8, zero_stage=2), tokens=1, logit_tokens=1)
    # LoRA of rank 8 on all linear layers: 8 * 32 * (4 * 8192 + 3 * 15104) parameters.
    assert found["whole gradients"] == 2 * 8 * 32 * (4 * 8192 + 3 * 15104)


def test_recurrent_states_take_the_same_for_any_length():
    shape = replace(SHAPE, recurrent_layers=0, state_values=1_000_000)
    found = generation_bytes(HeldModel(shape), Layout(), Engine(), samples=3, tokens=7)
    assert found["states"] == 3 * 1_000_000 * 4
    longer = generation_bytes(HeldModel(shape), Layout(), Engine(), samples=3, tokens=700)
    assert longer["states"] == found["states"]


def test_processes_hold_what_was_measured_of_one():
    memory = MemoryConstants(1e10, 1e10, process_bytes=4e8, overhead=0.25, logit_copies=9.0)
    constants = in_processes(DEFAULT, memory)
    assert (constants.held_bytes, constants.fragmentation) == (400_000_000, 0.0)
    assert constants.network_efficiency == DEFAULT.network_efficiency
    model = HeldModel(SHAPE, is_trained=True)
    by_class = train_bytes(model, Layout(), tokens=256, logit_tokens=1024)
    here = train_bytes(model, Layout(), tokens=256, logit_tokens=1024, calibration=constants)
    assert here["activations"] == pytest.approx(1.25 * by_class["activations"])
    assert here["logits"] == pytest.approx(4 * 9 / 10 * by_class["logits"])
    assert here["gradients"] == by_class["gradients"]


def test_divided_experts_lie_on_fewer_devices_than_all_else():
    """Mixtral 8x7B: 45.1 of its 46.7 billion parameters are eight experts in 32 layers."""
    shape = shape_named("mixtral-8x7b")
    routed = 32 * 8 * 3 * 4096 * 14336
    other = shape.num_params - routed
    model = HeldModel(shape, is_trained=True)
    assert shape.routed_share == pytest.approx(routed / shape.num_params)
    layout = Layout(tensor=2, data=8, shard=8, zero_stage=1, expert=8)
    found = resting_bytes(model, layout)
    assert found["weights"] == pytest.approx(2 * (other / 2 + routed / 8))
    assert found["optimizer"] == pytest.approx(12 * (other / 16 + routed / 16))
    gradients = train_bytes(model, layout, tokens=1, logit_tokens=1)["gradients"]
    assert gradients == pytest.approx(found["weights"])
    undivided = resting_bytes(model, replace(layout, expert=1))
    assert undivided["weights"] == pytest.approx(2 * shape.num_params / 2)
