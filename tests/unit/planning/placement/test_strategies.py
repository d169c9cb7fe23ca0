"""What each strategy puts where, and why it sometimes cannot."""

from __future__ import annotations

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.names import ALGORITHMS, PUBLISHED_SYSTEMS, STRATEGIES, in_order
from flexrlhf.planning.placement.arrangement import Refusal
from flexrlhf.planning.placement.arranging import arrangements
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.placement.strategies import STRATEGY_RULES
from flexrlhf.planning.placement.strategies.guideline import generating_devices
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.shape import IterationShape

SPECS = [
    *(algorithm_spec(name) for name in ALGORITHMS),
    algorithm_spec("ppo", share_actor_critic=True),
    algorithm_spec("grpo", uses_reference=False),
    algorithm_spec("grpo", has_reward_model=False),
]
NAMES = [*STRATEGY_RULES, "guideline"]


def sizes(arrangement):
    return {role: len(devices) for role, devices in arrangement.devices.items()}


def first(strategy, spec, cluster, **options):
    found = arrangements(strategy, spec, cluster, **options)
    assert not isinstance(found, Refusal), found.why
    return found[0]


def why(strategy, spec, cluster):
    found = arrangements(strategy, spec, cluster)
    assert isinstance(found, Refusal)
    return found.why


def test_every_strategy_has_a_rule():
    assert {*STRATEGY_RULES, "custom"} == set(STRATEGIES)


@pytest.mark.parametrize("strategy", NAMES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (1, 7), (2, 8), (3, 4), (5, 1)])
def test_arrangements_have_every_role_on_devices_of_the_cluster(strategy, shape, cluster):
    machines = cluster(*shape)
    for spec in SPECS:
        found = arrangements(strategy, spec, machines)
        if isinstance(found, Refusal):
            assert found.why.endswith(".")
            continue
        assert found
        for arrangement in found:
            assert set(spec.roles) <= set(arrangement.devices)
            assert tuple(arrangement.devices) == in_order(arrangement.devices)
            assert all(d and set(d) <= set(machines.devices) for d in arrangement.devices.values())
            assert arrangement.is_export_only is (strategy in PUBLISHED_SYSTEMS)
            assert set(arrangement.fixed) <= set(arrangement.devices)
            assert arrangement.note.endswith(".")


@pytest.mark.parametrize("strategy", NAMES)
def test_a_graph_can_be_made_of_every_arrangement(strategy, cluster):
    for spec in SPECS:
        found = arrangements(strategy, spec, cluster(2, 4))
        for arrangement in [] if isinstance(found, Refusal) else found:
            plan = Plan(
                rank=1,
                strategy=arrangement.strategy,
                feasible=True,
                why=arrangement.note,
                placement={
                    role: RolePlacement(
                        devices, data_parallel=len(devices), **arrangement.degrees_of(role)
                    )
                    for role, devices in arrangement.devices.items()
                },
            )
            iteration_graph(spec, plan, IterationShape(num_samples=8, rollout_micro_batches=2), 0)
            assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("strategy", NAMES)
def test_no_two_arrangements_of_a_strategy_are_the_same(strategy, ppo, cluster):
    found = arrangements(strategy, ppo, cluster(2, 8))
    seen = [(a.devices, a.generation, a.fixed) for a in found]
    assert all(one not in seen[:place] for place, one in enumerate(seen))


def test_colocated(ppo, cluster):
    found = first("colocated", ppo, cluster(2, 8))
    assert set(found.devices.values()) == {tuple(range(16))}
    assert found.generation is None


def test_interleaved_1_begins_with_halves(ppo, cluster):
    found = arrangements("interleaved_1", ppo, cluster(1, 8))
    assert sizes(found[0]) == {"actor": 8, "critic": 8, "reference": 4, "reward": 4}
    assert found[0].devices["reference"] == (0, 1, 2, 3)
    assert found[0].devices["reward"] == (4, 5, 6, 7)
    divided = {(len(a.devices["reference"]), len(a.devices["reward"])) for a in found}
    assert divided == {(n, 8 - n) for n in range(1, 8)}


def test_two_reward_models_beside_a_reference_get_a_third_each(two_rewards, cluster):
    found = first("interleaved_1", two_rewards, cluster(2, 6))
    assert found.devices["actor"] == tuple(range(12))
    assert found.devices["reference"] == (0, 1, 2, 3)
    assert found.devices["reward"] == (4, 5, 6, 7)
    assert found.devices["reward:safety"] == (8, 9, 10, 11)


@pytest.mark.parametrize("strategy", ["interleaved_1", "interleaved_2"])
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            algorithm_spec("grpo", uses_reference=False),
            "grpo has only one frozen model (reward) that scores answers",
        ),
        (
            algorithm_spec("grpo", has_reward_model=False),
            "grpo has only one frozen model (reference) that scores answers; reward comes from",
        ),
        (algorithm_spec("dpo"), "dpo has given answers"),
        (algorithm_spec("sft"), "sft has given answers"),
    ],
)
def test_without_two_independent_models_there_is_no_interleaving(strategy, spec, said, cluster):
    assert said in why(strategy, spec, cluster(2, 8))


def test_interleaving_needs_a_device_per_model(two_rewards, cluster):
    assert "cannot stand side by side on 2 devices" in why(
        "interleaved_1", two_rewards, cluster(1, 2)
    )


def test_interleaved_2_keeps_the_actor_inside_a_node(ppo, cluster):
    in_turn, side_by_side, *_ = arrangements("interleaved_2", ppo, cluster(3, 4))
    elsewhere = (4, 5, 6, 7, 8, 9, 10, 11)
    assert in_turn.devices == {
        "actor": (0, 1, 2, 3),
        "critic": elsewhere,
        "reference": elsewhere,
        "reward": elsewhere,
    }
    assert side_by_side.devices["reference"] == (4, 5, 6, 7)
    assert side_by_side.devices["reward"] == (8, 9, 10, 11)
    assert "one node" in why("interleaved_2", ppo, cluster(1, 8))


def test_interleaved_2_gives_the_actor_the_fastest_node(ppo, mixed):
    assert first("interleaved_2", ppo, mixed).devices["actor"] == tuple(range(8, 16))


def test_disaggregated_tries_many_divisions(ppo, cluster):
    found = arrangements("disaggregated", ppo, cluster(1, 4))
    divided = {tuple(sizes(a)[r] for r in ("actor", "reward", "shadow_actor")) for a in found}
    inside = {(1, 3, 3), (2, 2, 2), (3, 1, 1)}
    assert divided == inside | {(1, 1, 2), (2, 1, 1)}
    for arrangement in found:
        assert not set(arrangement.devices["actor"]) & set(arrangement.devices["shadow_actor"])
        assert arrangement.devices["critic"] == arrangement.devices["actor"]
        assert arrangement.devices["shadow_critic"] == arrangement.devices["reward"]


def test_disaggregated_stays_few_on_many_devices(ppo, cluster):
    found = arrangements("disaggregated", ppo, cluster(128, 8))
    assert len(found) < 70
    assert {len(a.devices["actor"]) % 64 for a in found} == {0}


@pytest.mark.parametrize(
    ("spec", "devices", "said"),
    [
        (algorithm_spec("dpo"), 8, "dpo generates nothing"),
        (algorithm_spec("reward_model"), 8, "reward_model generates nothing"),
        (algorithm_spec("ppo"), 1, "One device cannot be divided"),
    ],
)
def test_no_disaggregation(spec, devices, said, cluster):
    assert said in why("disaggregated", spec, cluster(1, devices))


def test_heterogeneous_is_disaggregated_on_unlike_pools(ppo, mixed):
    found = arrangements("disaggregated", ppo, mixed)
    old, new = set(range(8)), set(range(8, 16))
    pairs = [(set(a.devices["actor"]), set(a.devices["shadow_actor"])) for a in found]
    assert (new, old) in pairs
    assert (old, new) in pairs


def test_reward_on_one(ppo, two_rewards, cluster):
    assert first("reward_on_one", ppo, cluster(1, 8)).devices["reward"] == (0,)
    assert sizes(first("reward_on_one", two_rewards, cluster(1, 8))) == {
        "actor": 8,
        "critic": 8,
        "reference": 8,
        "reward": 1,
        "reward:safety": 1,
    }
    assert "no reward model" in why("reward_on_one", algorithm_spec("dpo"), cluster(1, 8))
    assert "no reward model" in why(
        "reward_on_one", algorithm_spec("grpo", has_reward_model=False), cluster(1, 8)
    )


def test_zero3_generation(ppo, cluster):
    found = first("zero3_generation", ppo, cluster(2, 8))
    assert found.degrees_of("actor") == {
        "zero_stage": 3,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "shard_devices": None,
        "generation": "per_token",
    }
    assert found.degrees_of("critic") == {}


def test_hybrid_sharded(ppo, cluster, mixed):
    trained, every = arrangements("hybrid_sharded", ppo, cluster(2, 8))
    inside = {"zero_stage": 3, "shard_devices": 8}
    assert trained.fixed == {"actor": inside, "critic": inside}
    assert set(every.fixed) == set(ppo.models)
    assert "one node" in why("hybrid_sharded", ppo, cluster(1, 8))
    assert "no equal blocks" in why("hybrid_sharded", ppo, cluster(4, 1))


def test_tp_generation(ppo, cluster):
    found = arrangements("tp_generation", ppo, cluster(2, 8))
    assert [a.degrees_of("actor") for a in found] == [
        {"generation": "tensor_parallel", "generation_tensor_parallel": size} for size in (2, 4, 8)
    ]
    assert "No number of devices" in why("tp_generation", ppo, cluster(4, 1))


def test_deepspeed_chat_without_and_with_its_hybrid_engine(ppo, cluster):
    found = arrangements("deepspeed_chat", ppo, cluster(1, 8))
    assert [a.generation for a in found] == ["per_token", "gathered"]
    assert set(found[0].devices.values()) == {tuple(range(8))}


def test_trlx_has_its_reward_on_a_device_of_its_own(ppo, cluster):
    found = first("trlx", ppo, cluster(1, 8))
    assert (found.strategy, found.generation) == ("trlx", "per_token")
    assert found.devices == {
        "actor": tuple(range(7)),
        "critic": tuple(range(7)),
        "reference": tuple(range(7)),
        "reward": (7,),
    }


def test_trlx_without_a_second_device_or_a_reward_model_shares_all(ppo, cluster):
    assert set(first("trlx", ppo, cluster(1, 1)).devices.values()) == {(0,)}
    functions = algorithm_spec("grpo", has_reward_model=False)
    assert set(first("trlx", functions, cluster(1, 4)).devices.values()) == {(0, 1, 2, 3)}


def test_openrlhf_pairs_roles_and_sets_engines_apart(ppo, cluster):
    paired, apart, *together = arrangements("openrlhf", ppo, cluster(3, 8))
    assert paired.devices == {
        "actor": tuple(range(8)),
        "critic": tuple(range(8, 16)),
        "reference": tuple(range(8)),
        "reward": tuple(range(8, 16)),
        "shadow_actor": tuple(range(16, 24)),
    }
    assert sorted(map(len, apart.devices.values())) == [4, 4, 4, 4, 8]
    assert [a.generation for a in together] == ["tensor_parallel"] * 3
    assert paired.fixed == {"actor": {"zero_stage": 3}, "critic": {"zero_stage": 3}}


def test_verl_reshards_the_actor(ppo, cluster):
    found = arrangements("verl", ppo, cluster(1, 4))
    assert [a.degrees_of("actor") for a in found] == [
        {"zero_stage": 3, "generation": "gathered"},
        {"zero_stage": 3, "generation": "tensor_parallel", "generation_tensor_parallel": 2},
        {"zero_stage": 3, "generation": "tensor_parallel", "generation_tensor_parallel": 4},
    ]


def test_real_trains_on_halves_and_generates_on_all(ppo, cluster):
    *_, halves = arrangements("real", ppo, cluster(1, 8))
    assert halves.devices == {
        "actor": (0, 1, 2, 3),
        "critic": (4, 5, 6, 7),
        "reference": (0, 1, 2, 3),
        "reward": (4, 5, 6, 7),
        "shadow_actor": tuple(range(8)),
    }


def test_the_guideline_interleaves_on_few_devices(ppo, cluster):
    fits = first("guideline", ppo, cluster(2, 8), weight_bytes={"reference": 65e9, "reward": 1e9})
    assert fits.strategy == "interleaved_1"
    assert sizes(fits)["reference"] == sizes(fits)["reward"] == 8
    large = first("guideline", ppo, cluster(2, 8), weight_bytes={"reference": 1e12})
    assert (large.strategy, "does not fit one node" in large.note) == ("colocated", True)
    assert first("guideline", algorithm_spec("dpo"), cluster(8, 8)).strategy == "colocated"


@pytest.mark.parametrize(
    ("shape", "generating"),
    [
        ((4, 8), 16),  # whole nodes: one is 25 %, two are 50 %
        ((16, 8), 48),  # 37.5 %, nearer to 40 % than 56
        ((5, 8), 16),
        ((4, 4), 8),
        ((4, 1), 2),
    ],
)
def test_the_guideline_gives_generation_30_to_50_percent(shape, generating, ppo, cluster):
    assert generating_devices(cluster(*shape)) == generating
    found = first("guideline", ppo, cluster(*shape))
    assert (found.strategy, sizes(found)["shadow_actor"]) == ("disaggregated", generating)


def test_the_guideline_generates_on_the_slower_devices(ppo, mixed):
    found = first("guideline", ppo, mixed)
    assert found.strategy == "disaggregated"
    assert found.devices["shadow_actor"] == tuple(range(8))
    assert found.devices["actor"] == tuple(range(8, 16))
