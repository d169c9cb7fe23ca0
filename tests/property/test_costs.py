"""What must hold for the costs of any model and layout."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import DEFAULT
from flexrlhf.planning.costs.decoding import Decoder
from flexrlhf.planning.costs.groups import replica_group, shard_group, tensor_group
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.memory import Engine, resting_bytes, train_bytes
from flexrlhf.planning.costs.passes import Passes
from flexrlhf.planning.costs.shape_catalogue import SHAPES, shape_named

shapes = st.sampled_from(sorted(SHAPES)).map(shape_named)
counts = st.integers(1, 512)
tokens = st.integers(1, 8192)
FEW = settings(max_examples=60, deadline=None)
NODE = Cluster.uniform("H100-80G", nodes=1, devices_per_node=8)


def decoder(shape, engine):
    layout = Layout(tensor=engine.tensor, data=8 // engine.tensor)
    group = tensor_group(NODE, range(8), layout)
    alone = tensor_group(NODE, range(8), Layout())
    return Decoder(HeldModel(shape), engine, NODE.device_type(0), DEFAULT, group, alone)


def passes(shape, layout, *, is_trained=True):
    devices = range(layout.num_devices)
    return Passes(
        HeldModel(shape, is_trained=is_trained),
        layout,
        NODE.device_type(0),
        DEFAULT,
        tensor_group(NODE, devices, layout),
        shard_group(NODE, devices, layout),
        replica_group(NODE, devices, layout),
    )


@FEW
@given(shapes, counts, counts, tokens, tokens)
def test_a_step_takes_no_less_for_more_sequences_or_longer_ones(shape, few, more, short, long):
    few, more = sorted((few, more))
    short, long = sorted((short, long))
    engine = decoder(shape, Engine())
    assert engine.step_s(few, short) <= engine.step_s(more, long) * (1 + 1e-9)


@FEW
@given(shapes, st.integers(64, 512), st.lists(tokens, min_size=1, max_size=16))
def test_continuous_batching_takes_no_longer_than_a_static_batch(shape, samples, lengths):
    drawn = Lengths.of_samples(lengths)
    prompt = Lengths.fixed(0)
    continuous = decoder(shape, Engine()).decode_s(samples, samples, prompt, drawn)
    static = decoder(shape, Engine(continuous=False)).decode_s(samples, samples, prompt, drawn)
    # The static batch is charged its mean context, the other one as it grows.
    assert continuous <= static * 1.05 + 1e-9


@FEW
@given(shapes, tokens, tokens, st.integers(1, 16), st.integers(1, 16))
def test_training_takes_no_less_for_more_tokens_or_more_passes(shape, few, more, some, many):
    few, more = sorted((few, more))
    some, many = sorted((some, many))
    role = passes(shape, Layout(data=8, shard=8, zero_stage=3))
    short = role.forward_backward(few, 100, some)
    long = role.forward_backward(more, 100, many)
    assert short.compute_s <= long.compute_s * (1 + 1e-9)
    assert short.communication_s >= 0


@FEW
@given(shapes, tokens)
def test_scoring_takes_no_longer_than_training(shape, count):
    layout = Layout(data=8, shard=8, zero_stage=3)
    scored = passes(shape, layout).forward(count, 10)
    trained = passes(shape, layout).forward_backward(count, 10, 1)
    total = trained.compute_s + trained.communication_s
    assert scored.compute_s + scored.communication_s <= total * (1 + 1e-9)


@FEW
@given(shapes, st.integers(0, 2))
def test_a_higher_stage_of_zero_never_holds_more(shape, stage):
    model = HeldModel(shape, is_trained=True)

    def held(zero):
        layout = Layout(data=8, shard=8, zero_stage=zero)
        resting = sum(resting_bytes(model, layout).values())
        return resting + train_bytes(model, layout, tokens=1, logit_tokens=1)["gradients"]

    assert held(stage + 1) <= held(stage)


@FEW
@given(shapes, tokens)
def test_recomputation_never_keeps_more(shape, count):
    def kept(*, recomputes):
        model = HeldModel(shape, is_trained=True, recomputes=recomputes)
        return train_bytes(model, Layout(), tokens=count, logit_tokens=64)["activations"]

    # One layer's inputs are kept besides where there is only that layer to save.
    assert kept(recomputes=True) <= kept(recomputes=False) + count * shape.hidden * 2 * shape.layers
