"""Forward passes and training against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import DEFAULT
from flexrlhf.planning.costs.groups import replica_group, shard_group, tensor_group
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.passes import Passes
from flexrlhf.planning.costs.shape_catalogue import shape_named

PARAMS = 6_738_415_616
CALIBRATION = replace(
    DEFAULT,
    train_efficiency=0.5,
    forward_efficiency=0.25,
    decode_bandwidth=0.5,
    link_efficiency=1.0,
    launch_s=1e-6,
    collective_s=1e-5,
    overlap=0.0,
)


def passes(layout=None, *, recomputes=True, lora_rank=None, is_trained=True, **changes):
    layout = layout or Layout()
    cluster = Cluster.uniform("A100-80G", nodes=1, devices_per_node=layout.num_devices)
    devices = range(layout.num_devices)
    return Passes(
        HeldModel(
            shape_named("llama-7b"),
            head="value",
            is_trained=is_trained,
            recomputes=recomputes,
            lora_rank=lora_rank,
        ),
        layout,
        cluster.device_type(0),
        replace(CALIBRATION, **changes),
        tensor_group(cluster, devices, layout),
        shard_group(cluster, devices, layout),
        replica_group(cluster, devices, layout),
    )


def products(tokens, context):
    """Operations of one forward pass of LLaMA 7B's blocks, as Megatron counts them."""
    blocks = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    attention = 4 * 4096 * context * 32
    return tokens * (2 * blocks + attention)


def test_scoring_is_its_products():
    found = passes(is_trained=False).forward(10_000, 128)
    assert found.compute_s == pytest.approx(products(10_000, 128) / (0.25 * 312e12))
    assert found.communication_s == 0.0


@pytest.mark.parametrize(
    ("recomputes", "lora_rank", "factor"),
    [(True, None, 4), (False, None, 3), (True, 8, 3), (False, 8, 2)],
)
def test_training_is_three_passes_and_what_is_computed_again(recomputes, lora_rank, factor):
    # Source: adapters need no gradient of the frozen weights, which is a third of the work.
    found = passes(recomputes=recomputes, lora_rank=lora_rank)
    seconds = found.forward_backward(10_000, 128, 1).compute_s
    assert seconds == pytest.approx(factor * products(10_000, 128) / (0.5 * 312e12))


def test_many_small_passes_wait_for_the_host():
    found = passes(launch_s=1e-4).forward(100, 50, micro_batches=10)
    assert found.compute_s == pytest.approx(10 * 32 * 20 * 1e-4)


def test_zero_3_gathers_for_each_pass_and_scatters_once():
    layout = Layout(data=8, shard=8, zero_stage=3)
    found = passes(layout).forward_backward(1, 1, 2)
    blocks = PARAMS - 32000 * 4096 + 4096  # without the head over the vocabulary, with one value
    ring_s = 7 / 8 * 2 * blocks / 300e9 + 3 * 1.9e-6
    # Each of 32 layers has 207 million parameters: 5 fetches of at most 50 million, each with its
    # collective and its hooks.
    fetches_s = 32 * 5 * (1e-5 + 1e-4)
    assert found.communication_s == pytest.approx(2 * (4 * ring_s + 3 * fetches_s), rel=1e-6)


def test_a_pipeline_waits_for_its_first_and_last():
    layout = Layout(pipeline=4)
    one = passes(layout).forward(8192, 64, micro_batches=4).compute_s
    many = passes(layout).forward(8192, 64, micro_batches=32).compute_s
    whole_s = products(8192, 64) / 4 / (0.25 * 312e12)
    assert one == pytest.approx(whole_s * 7 / 4)
    assert many == pytest.approx(whole_s * 35 / 32)


def test_adamw_moves_28_bytes_a_parameter():
    found = passes(Layout(data=8, shard=8, zero_stage=3)).optimizer_step()
    blocks = PARAMS - 32000 * 4096 + 4096
    assert found.compute_s == pytest.approx(28 * blocks / 8 / (0.5 * 2039e9))


def test_an_offloaded_optimiser_is_bound_by_the_host():
    resident = passes().optimizer_step().compute_s
    offloaded = passes(Layout(offload=True)).optimizer_step().compute_s
    assert offloaded > 20 * resident
