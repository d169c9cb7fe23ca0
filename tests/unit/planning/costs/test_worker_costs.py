"""Seconds of several processes, worked out by hand from round constants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.link_catalogue import link_type
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.profiled.batches import PassLimit, SequenceLength
from flexrlhf.planning.costs.profiled.constants import (
    LogitCost,
    MemoryConstants,
    PassCost,
    ProfiledCosts,
    RowSpeed,
    UpdateCost,
    WidthSpeed,
)
from flexrlhf.planning.costs.profiled.profile import Profile, profile_from
from flexrlhf.planning.costs.profiled.wires import REACHED, Wire, Wires, wires_of
from flexrlhf.planning.costs.profiled.work import RunWork
from flexrlhf.planning.costs.profiled.worker_costs import (
    Crowd,
    GroupCost,
    ParcelCost,
    RoundTrip,
    ShardedCost,
    WeightCost,
    WorkerCosts,
)
from flexrlhf.planning.costs.profiled.worker_seconds import WorkerSeconds, dealt
from flexrlhf.planning.costs.shape import ModelShape
from flexrlhf.planning.placement.placed_role import PlacedRole
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.shape import IterationShape
from flexrlhf.planning.workflow.worker_durations import WorkerDurations

ONE = ProfiledCosts(
    dtype="float32",
    task_s=0.0,
    answer_s=0.0,
    barrier_s=0.0,
    score=PassCost(0.5, 0.0, 0.0),
    train=PassCost(1.0, 0.0, 0.0),
    decode=PassCost(0.25, 0.0, 0.0),
    widths=(WidthSpeed(64, 1e15, 1e15),),
    rows=(RowSpeed(1, 1e15),),
    logits=LogitCost(0.0, 0.0, 0.0),
    update=UpdateCost(0.1, 0.0, 1e-6),
    memory=MemoryConstants(1e15, 1e15, 1e8, 0.0, 1.0),
)
"""Only passes and updates take time."""

WORKERS = WorkerCosts(
    cores=2,
    costs=ONE,
    crowds=(Crowd(1, 1.0), Crowd(2, 1.25), Crowd(4, 2.5)),
    groups=(
        GroupCost(
            2,
            message_s=0.001,
            step_s=0.01,
            sum_byte_s=1e-7,
            share_byte_s=2e-7,
            gathers=ShardedCost(0.002, 0.0),
            trains=ShardedCost(0.004, 0.0),
            reduces=ShardedCost(0.003, 0.0),
        ),
    ),
    parcels=ParcelCost(0.0, 0.0, 0.0),
    weights=WeightCost(0.0, 0.0, 0.0, 0.0),
    round_trips=(RoundTrip(1, 0.001), RoundTrip(2, 0.002)),
)

SHAPE = ModelShape("tiny", 4, 64, 128, heads=2, kv_heads=2, head_dim=32, vocab=64)
MODEL = HeldModel(
    SHAPE,
    weight_dtype="float32",
    compute_dtype="float32",
    is_trained=True,
    recomputes=False,
)
SEQUENCES = tuple(SequenceLength(4.0, float(tokens)) for tokens in (4, 4, 4, 4))
WORK = RunWork(SEQUENCES, PassLimit(max_items=1))


def role(data: int, *, zero_stage: int = 0, tensor: int = 1, pipeline: int = 1) -> WorkerSeconds:
    """The tiny model on so many processes."""
    layout = Layout(tensor, pipeline, data, zero_stage, shard=data)
    ranks = layout.num_devices
    return WorkerSeconds(MODEL, layout, ranks, tensor, per_token=False, costs=WORKERS)


def test_slowdown_is_counted_from_all_cores_busy() -> None:
    assert WORKERS.slowdown(2) == 1.0
    assert WORKERS.slowdown(1) == pytest.approx(1 / 1.25)
    assert WORKERS.slowdown(3) == pytest.approx(1.875 / 1.25)
    assert WORKERS.slowdown(8) == pytest.approx(5.0 / 1.25)


def test_sequences_are_dealt_by_tokens_and_no_replica_gets_more_than_its_share() -> None:
    lengths = [SequenceLength(0.0, float(tokens)) for tokens in (9, 1, 1, 1)]
    first, second = dealt(lengths, 2)
    assert [s.response for s in first] == [9.0, 1.0]
    assert [s.response for s in second] == [1.0, 1.0]


def test_replicas_divide_the_passes() -> None:
    assert role(1).score(SEQUENCES, PassLimit(max_items=1), WORK) == pytest.approx(4 * 0.5)
    assert role(2).score(SEQUENCES, PassLimit(max_items=1), WORK) == pytest.approx(2 * 0.5)
    assert role(1).train(SEQUENCES, 0, WORK) == pytest.approx(1.0)
    assert role(2).train(SEQUENCES, 1, WORK) == pytest.approx(1.0)
    assert role(2).train(SEQUENCES, 2, WORK) == 0.0  # each replica has two passes


def test_sharded_weights_are_gathered_in_every_pass() -> None:
    layers = SHAPE.layers + 1
    scored = role(2, zero_stage=3).score(SEQUENCES, PassLimit(max_items=1), WORK)
    assert scored == pytest.approx(2 * (0.5 + layers * 0.002))
    assert role(2, zero_stage=3).train(SEQUENCES, 0, WORK) == pytest.approx(1.0 + layers * 0.004)
    assert role(2, zero_stage=2).train(SEQUENCES, 0, WORK) == pytest.approx(1.0 + layers * 0.003)


def test_layers_cut_over_processes_add_up_behind_attention_and_mlp() -> None:
    sums, num_bytes = 2 * SHAPE.layers, 8 * SHAPE.hidden * 4
    seconds = role(1, tensor=2).train(SEQUENCES, 0, WORK)
    assert seconds == pytest.approx(1.0 + 2 * sums * (0.001 + num_bytes * 1e-7), rel=1e-3)


def test_stages_share_a_pass_and_wait_for_the_first_and_the_last() -> None:
    handed = 0.001 + 8 * SHAPE.hidden * 4 * 1e-7
    seconds = role(1, pipeline=2).train(SEQUENCES, 0, WORK)  # the first of four passes
    assert seconds == pytest.approx(1.0 / 2 * 5 / 4 + 2 * handed)
    scored = role(1, pipeline=2).score(SEQUENCES, PassLimit(max_items=1), WORK)
    assert scored == pytest.approx(4 * 0.5 / 2 * 5 / 4 + 4 * handed)
    params, num_bytes = MODEL.trainable_params, MODEL.gradient_bytes
    assert role(1, pipeline=2).update() == pytest.approx(0.1 + params * 0.5e-6 + 0.01)
    copied = 2 * num_bytes / 2 / 1e15
    assert role(2, pipeline=2).update() == pytest.approx(
        0.1 + params * 0.5e-6 + WORKERS.group(4).step_s + num_bytes / 2 * 2e-7 + copied
    )


def test_a_step_updates_its_part_and_sums_gradients() -> None:
    params, num_bytes = MODEL.trainable_params, MODEL.gradient_bytes
    alone = 0.1 + params * 1e-6
    assert role(1).update() == pytest.approx(alone)
    copied = 2 * num_bytes / 1e15
    assert role(2).update() == pytest.approx(alone + 0.01 + num_bytes * 1e-7 + copied)
    assert role(2, zero_stage=1).update() == pytest.approx(
        0.1 + params * 0.5e-6 + 0.01 + num_bytes * 2e-7
    )
    assert role(2, zero_stage=3).update() == pytest.approx(0.1 + params * 0.5e-6 + 0.01)


def test_larger_groups_than_measured_cost_in_proportion() -> None:
    assert WORKERS.group(4).message_s == pytest.approx(0.002)
    assert WORKERS.group(4).gathers.layer_s == pytest.approx(0.004)


def test_between_machines_rings_add_their_bytes() -> None:
    wire = Wire(2, rate=1e4, latency_s=0.5)
    apart = replace(role(2, zero_stage=3), wires=Wires(shard=wire, data=wire))
    here = role(2, zero_stage=3)
    way_s = MODEL.gathered_bytes / 2 / 1e4 + (SHAPE.layers + 1) * 0.5
    passes = PassLimit(max_items=1)
    scored = apart.score(SEQUENCES, passes, WORK) - here.score(SEQUENCES, passes, WORK)
    assert scored == pytest.approx(2 * way_s)  # two passes of each replica
    assert MODEL.gradient_bytes == MODEL.gathered_bytes
    trained = apart.train(SEQUENCES, 0, WORK) - here.train(SEQUENCES, 0, WORK)
    assert trained == pytest.approx(4 * way_s)  # two gathers, and a sum of two rounds
    steps = 4  # answers of four tokens
    every = replace(apart, per_token=True), replace(here, per_token=True)
    generated = every[0].generate(SEQUENCES, WORK) - every[1].generate(SEQUENCES, WORK)
    assert generated == pytest.approx(steps * way_s)


def test_between_machines_replicas_add_up_gradients_in_two_rounds() -> None:
    wire = Wire(2, rate=1e4, latency_s=0.5)
    added = replace(role(2), wires=Wires(data=wire)).update() - role(2).update()
    assert added == pytest.approx(MODEL.gradient_bytes / 1e4 + (4 + 2) * 0.5)


def test_a_group_inside_one_machine_has_no_wire() -> None:
    cluster = Cluster.uniform("cpu-core", nodes=2, devices_per_node=2, between="Ethernet-10G")
    found = wires_of(cluster, (0, 1, 2, 3), Layout(tensor=2, data=2, shard=2), 2)
    assert found.tensor == found.engine == Wire(2)
    assert found.data.rate == pytest.approx(10e9 / 8 * REACHED / 2)  # two groups share the link
    assert found.data.round_s(1e9) == pytest.approx(0.5e9 / found.data.rate, rel=1e-3)


def test_faster_ways_leave_latencies_as_they_are() -> None:
    faster = WORKERS.faster(communication=2.0).group(2)
    assert (faster.message_s, faster.sum_byte_s) == (0.001, pytest.approx(0.5e-7))


def test_a_profile_keeps_what_it_says_of_processes() -> None:
    profile = Profile("A CPU", 2, 8e9, _writable(ONE), {}, None)
    workers = replace(WORKERS, costs=_writable(ONE))
    document = profile.with_workers(workers).to_document()
    assert profile_from(document, "x").workers == workers
    assert profile_from(profile.to_document(), "x").workers is None


def test_a_wrong_number_of_a_group_is_named() -> None:
    document = (
        Profile("A CPU", 2, 8e9, _writable(ONE), {}, None)
        .with_workers(replace(WORKERS, costs=_writable(ONE)))
        .to_document()
    )
    document["workers"]["groups"][0]["message_s"] = -1.0
    with pytest.raises(ConfigError, match=r"workers\.groups\.0\.message_s"):
        profile_from(document, "x")


def test_processes_become_devices_with_a_part_of_the_memory() -> None:
    cluster = Profile("A CPU", 2, 8e9, ONE, {}, WORKERS).workers_cluster(4, 2)
    assert [node.devices for node in cluster.nodes] == [(0, 1), (2, 3)]
    assert cluster.device_type(0).memory_bytes == 2_000_000_000


def test_a_profile_without_processes_has_none_to_place_on() -> None:
    with pytest.raises(ConfigError, match="nothing of several processes"):
        Profile("A CPU", 2, 8e9, ONE, {}, None).workers_cluster(2, 1)


def _writable(costs: ProfiledCosts) -> ProfiledCosts:
    """With speeds that a file may hold."""
    memory = replace(costs.memory, read_bandwidth=1e10, cache_bandwidth=1e10)
    return replace(costs, memory=memory)


def test_parts_hold_the_answers_that_end_next() -> None:
    long, short = SequenceLength(4.0, 9.0), SequenceLength(4.0, 2.0)
    begun = [[long, short], [short, short]]
    parts = role(1).stream(begun, WORK)
    assert [part for part, _ in parts] == [[short, short], [short, long]]
    # Three steps and one more prompt for the two that end first, not the eight of the long one.
    assert parts[0][1] == pytest.approx(role(1).generate(begun[0], WORK) - 5 * 0.25 + 0.5)


def test_replicas_stream_side_by_side() -> None:
    answers = [SequenceLength(4.0, float(n)) for n in (2, 9, 3, 9)]
    parts = role(2).stream([answers[:2], answers[2:]], WORK)
    assert [sorted(a.response for a in part) for part, _ in parts] == [[2, 9], [3, 9]]


def weights_transfer_s(request_s: float) -> float:
    """Of GRPO with an actor on one process and three that generate."""
    spec = algorithm_spec("grpo")
    places = {
        "actor": RolePlacement((0,)),
        "reference": RolePlacement((0,)),
        "reward": RolePlacement((0,)),
        "shadow_actor": RolePlacement((1, 2, 3), data_parallel=3),
    }
    plan = Plan(1, "disaggregated", feasible=True, why="", placement=places)
    graph = iteration_graph(spec, plan, IterationShape(num_samples=4), 0)
    durations = WorkerDurations(
        spec,
        [
            PlacedRole("actor", MODEL, (0,), Layout(1, 1, 1, 0, shard=1)),
            PlacedRole("shadow_actor", MODEL, (1, 2, 3), Layout(1, 1, 3, 0, shard=3)),
        ],
        graph=graph,
        shape=IterationShape(num_samples=4),
        work=WORK,
        costs=replace(WORKERS, parcels=ParcelCost(request_s, 0.0, 0.0)),
        peak_bytes=lambda _: 0,
    )
    (transfer,) = [one for one in graph.transfers if one.kind == "weights"]
    return durations.transfer_time(transfer).latency_s


def test_replicas_ask_each_other_for_parts_of_new_weights() -> None:
    more_s = weights_transfer_s(0.01) - weights_transfer_s(0.0)
    assert more_s == pytest.approx(3 * 2 * 0.01 * WORKERS.slowdown(6))


def scoring_s(speeds: tuple[float, float], *, is_shared_by_speed: bool) -> float:
    """Computing of one scoring task on two machines of such speeds, a process each."""
    core = Cluster.uniform("cpu-core", nodes=1, devices_per_node=1).nodes[0]
    nodes = tuple(
        replace(
            core,
            index=place,
            devices=(place,),
            device=replace(core.device, flops={"float32": speed * ONE.most_flops}),
        )
        for place, speed in enumerate(speeds)
    )
    spec = algorithm_spec("grpo", has_reward_model=False)
    both = RolePlacement((0, 1), data_parallel=2)
    places = {"actor": both, "reference": both, "reward": both}
    plan = Plan(1, "colocated", feasible=True, why="", placement=places)
    graph = iteration_graph(spec, plan, IterationShape(num_samples=4), 0)
    layout = Layout(1, 1, 2, 0, shard=2)
    durations = WorkerDurations(
        spec,
        [
            PlacedRole(role, MODEL, (0, 1), layout, is_shared_by_speed=is_shared_by_speed)
            for role in ("actor", "reference")
        ],
        graph=graph,
        shape=IterationShape(num_samples=4),
        work=WORK,
        costs=WORKERS,
        peak_bytes=lambda _: 0,
        machines=Cluster(nodes, {frozenset({"all"}): link_type("Ethernet-10G")}),
    )
    (task,) = [t for t in graph.tasks if t.role == "reference"]
    return durations.task_time(task).compute_s


def test_machines_share_work_by_their_speeds_or_wait_for_the_slowest() -> None:
    alike_s = scoring_s((1.0, 1.0), is_shared_by_speed=False)
    assert scoring_s((1.0, 0.5), is_shared_by_speed=False) == pytest.approx(2 * alike_s)
    assert scoring_s((1.0, 0.5), is_shared_by_speed=True) == pytest.approx(alike_s / 0.75)
    assert scoring_s((1.0, 1.0), is_shared_by_speed=True) == pytest.approx(alike_s)
