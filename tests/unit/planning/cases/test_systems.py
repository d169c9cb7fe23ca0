"""What sets the published systems apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import case_of
from flexrlhf.planning.cases.course import course_of
from flexrlhf.planning.cases.prediction import predict_row
from flexrlhf.planning.cases.setting import setting_of
from flexrlhf.planning.costs.calibration import DEFAULT

UNSTATED_BATCH = {"prompts_per_iteration": "", "num_minibatches": ""}


@pytest.fixture
def setting(row):
    """Returns the setting of a row."""
    return lambda **changes: setting_of(case_of(row(**changes), 2), Assumptions())


def test_the_device_of_trlx_rewards_holds_nothing_else(setting):
    placement = setting(system="trlX", strategy="reward_on_one").plan.placement
    assert placement["reward"].devices == (7,)
    assert placement["actor"].devices == placement["reference"].devices == tuple(range(7))


def test_trlx_keeps_the_batch_of_one_node(row):
    def batch(num_devices):
        changes = {"system": "trlX", "strategy": "reward_on_one", "n_gpus": num_devices}
        return predict_row(row(metric="max_batch_samples", **changes, **UNSTATED_BATCH), 2).value

    # On two nodes each device would hold less of the optimiser, and room for more samples.
    assert batch("16") == batch("8")


def test_generation_apart_is_split_over_a_node_in_flexrlhf(setting):
    apart = {"strategy": "disaggregated", "n_gpus": "16", "n_gpus_generate": "8"}
    placement = setting(system="FlexRLHF", **apart).plan.placement
    for role in ("shadow_actor", "shadow_critic", "reference", "reward"):
        assert placement[role].tensor_parallel == 8
    assert placement["actor"].tensor_parallel == 1


def test_flexrlhf_counts_everything_where_roles_are_apart(row, setting):
    changes = {"system": "FlexRLHF", "strategy": "disaggregated", "n_gpus": "16"}
    course = course_of(setting(**changes))
    rate = predict_row(row(metric="samples_per_s", **changes), 2).value
    assert rate == pytest.approx(256 / course.iteration_s)


def test_flexrlhf_leaves_out_scoring_where_roles_share_devices(row, setting):
    course = course_of(setting(system="FlexRLHF"))
    rate = predict_row(row(metric="samples_per_s", system="FlexRLHF"), 2).value
    assert rate == pytest.approx(256 / (course.stage_s("generate") + course.stage_s("train")))


@pytest.mark.parametrize(
    ("model", "at_once"), [("llama2-7b", 16), ("llama2-13b", 8), ("llama2-70b", 4)]
)
def test_authors_runs_of_openrlhf_send_what_their_scripts_say(setting, model, at_once):
    unstated = dict.fromkeys(
        [f"{part}_tokens_{which}" for part in ("prompt", "response") for which in ("mean", "max")],
        "",
    )
    split = {"strategy": "split", "n_gpus_generate": "4", "n_gpus_train": "2", "n_gpus_other": "2"}
    engine = setting(system="OpenRLHF", actor_model=model, **split, **unstated).request.engine
    generator = setting(system="OpenRLHF", actor_model=model, **split, **unstated).plan.placement
    replicas = 4 // generator["shadow_actor"].tensor_parallel
    assert engine.most_samples == at_once * 2 // replicas
    assert not engine.continuous


def test_a_trainer_alone_writes_its_weights_for_engines(setting):
    alone = {"strategy": "trainer_only", "system": "prime-rl", "actor_model": "qwen3-4b"}
    found = setting(**alone)
    params = found.request.models["actor"].num_params
    assert params == pytest.approx(4.02e9, rel=0.01)
    # 2 bytes a parameter at 1.55 GB/s, after every second micro-batch.
    assert found.written_s == pytest.approx(params * 2 / 1.55e9 / 2)
    assert setting(**alone, lora_rank="16").written_s == 0
    assert setting(**(alone | {"strategy": "colocated"})).written_s == 0


def test_a_split_trainer_sends_all_weights_past_its_own_engine(row):
    def seconds(sync_efficiency):
        calibration = replace(DEFAULT, sync_efficiency=sync_efficiency)
        changes = {
            "system": "NeMo-RL",
            "gpu": "H100-80G",
            "n_gpus": "16",
            "actor_model": "llama2-70b",
            "tp_train": "8",
            "pp_train": "2",
            "tp_generate": "8",
            "metric": "generation_time",
        }
        return predict_row(row(**changes), 2, calibration=calibration).value

    # Of 138 GB each device lacks 15 of 16 parts; a node takes in 400 GB/s at full rate, with a
    # fifth more for the doubling of nodes.
    once_s = 15 / 16 * 2 * 68_976_648_192 / 400e9 * 1.2
    assert seconds(0.25) - seconds(0.5) == pytest.approx(once_s * (4 - 2), rel=0.01)


def test_a_trainer_waits_for_every_transfer_of_its_weights(row):
    def seconds(metric, variant=""):
        changes = {"strategy": "async_disaggregated", "system": "verl", "num_minibatches": "8"}
        return predict_row(row(metric=metric, variant=variant, **changes), 2).value

    # Eight updates with a transfer after every second one: four, of which one ends the iteration.
    more_s = seconds("iteration_time", "sync_every=2") - seconds("iteration_time")
    assert more_s == pytest.approx(3 * seconds("weight_sync_time"), rel=1e-6)
    assert seconds("iteration_time", "sync_every=8") == seconds("iteration_time")
    fetched = "sync_every=2;require_batches=4"
    assert seconds("iteration_time", fetched) == seconds("iteration_time")


def test_utilisation_counts_operations_as_palm_does(row):
    alone = {
        "strategy": "trainer_only",
        "system": "verl",
        "actor_model": "llama2-7b",
        "sequence_tokens_total": "4096",
        "train_batch_samples": "8",
        "num_minibatches": "1",
        "prompts_per_iteration": "",
    }
    alone |= {
        f"{part}_tokens_{which}": "" for part in ("prompt", "response") for which in ("mean", "max")
    }
    rate = predict_row(row(metric="train_tokens_per_s", **alone), 2).value
    share = predict_row(row(metric="mfu", **alone), 2).value
    per_token = 6 * 6_738_415_616 + 12 * 32 * 4096 * 4096
    assert share == pytest.approx(rate * per_token / 8 / 312e12, rel=1e-3)


def test_experts_in_parts_are_not_sharded_once_more(setting):
    degrees = {"system": "NeMo-RL", "tp_train": "1", "pp_train": "1"}
    assert setting(**degrees, ep_train="8").plan.placement["actor"].zero_stage == 1
    assert setting(**degrees, ep_train="1").plan.placement["actor"].zero_stage == 3
