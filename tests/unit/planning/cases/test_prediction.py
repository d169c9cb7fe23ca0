"""Answers to rows."""

from __future__ import annotations

import math

import pytest

from flexrlhf.planning.cases.prediction import predict_row
from flexrlhf.planning.cases.systems import SYSTEMS
from flexrlhf.planning.cases.vocabulary import ALGORITHMS, METRICS, STRATEGIES


def answer(row):
    found = predict_row(row, 2)
    assert found.status == "ok"
    assert found.value is not None
    return found


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_is_answered(row, metric):
    value = answer(row(metric=metric, steps="10")).value
    assert math.isfinite(value)
    assert value >= 0 or metric in ("generation_time_reduction", "weight_sync_time_reduction")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("strategy", ["trainer_only", "inference_only", "async_disaggregated"])
def test_every_metric_is_answered_for_parts_and_pipelines(row, metric, strategy):
    found = answer(row(metric=metric, strategy=strategy, system="verl", algorithm="grpo"))
    assert math.isfinite(found.value)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "unstated", "diagonal"])
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_every_strategy_is_answered(row, strategy, algorithm):
    assert answer(row(strategy=strategy, algorithm=algorithm, n_gpus="16")).value > 0


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "unstated"])
@pytest.mark.parametrize("strategy", ["interleaved_2", "split", "disaggregated"])
def test_every_algorithm_is_answered(row, strategy, algorithm):
    assert answer(row(strategy=strategy, algorithm=algorithm, n_gpus="16")).value > 0


@pytest.mark.parametrize("system", [system.name for system in SYSTEMS.values()] + ["", "new-one"])
def test_every_system_is_answered(row, system):
    assert answer(row(system=system)).value > 0


@pytest.mark.parametrize("num_devices", ["1", "2", "3", "7", "12", "130"])
@pytest.mark.parametrize("strategy", ["split", "interleaved_2", "disaggregated", "searched"])
def test_odd_numbers_of_devices_are_answered(row, num_devices, strategy):
    assert answer(row(n_gpus=num_devices, strategy=strategy, tp_train="8")).value > 0


def test_an_empty_row_with_a_metric_is_assumed_from_end_to_end(row):
    empty = dict.fromkeys(row(), "") | {"metric": "iteration_time"}
    found = answer(empty)
    for column in ("gpu", "n_gpus", "actor_model", "algorithm", "strategy", "dtype"):
        assert column in found.assumptions


def test_what_is_stated_is_not_assumed(row):
    assumed = answer(row()).assumptions
    assert "gpu=" not in assumed
    assert "actor_model=" not in assumed
    assert "recompute=" in assumed


def test_what_was_measured_and_said_of_it_is_never_read(row):
    plain = answer(row()).cells()
    told = {"id": "x", "value": "1e99", "notes": "n", "source": "s", "provenance": "p"}
    assert answer(row() | told).cells() == plain


def test_a_row_that_no_list_knows_is_refused_with_the_reason(row):
    found = predict_row(row(actor_model="gpt-5"), 2)
    assert found.value is None
    assert found.status.startswith("refused: actor_model 'gpt-5'")


@pytest.mark.parametrize("kind", ["meta", "ratio", "range"])
def test_only_measurements_are_answered(row, kind):
    assert (
        predict_row(row() | {"kind": kind}, 2).status
        == f"refused: kind {kind} is not for prediction"
    )


def test_an_unknown_device_is_assumed_to_be_the_usual_one(row):
    found = answer(row(gpu="Z100"))
    assert found.value == answer(row(gpu="A100-80G")).value
    assert "Z100" in found.assumptions


def test_more_devices_are_faster_and_more_tokens_slower(row):
    base = answer(row(prompts_per_iteration="1024")).value
    assert answer(row(prompts_per_iteration="1024", n_gpus="16")).value < base
    longer = row(
        prompts_per_iteration="1024", response_tokens_mean="512", response_tokens_max="512"
    )
    assert answer(longer).value > base


def test_a_run_is_as_many_iterations_as_it_has_steps(row):
    one = answer(row()).value
    assert answer(row(metric="run_time", steps="12")).value == pytest.approx(12 * one)
    total = row(metric="run_time", variant="samples_total=2560")
    assert answer(total).value == pytest.approx(10 * one)


def test_rates_are_work_over_time(row):
    seconds = answer(row()).value
    assert answer(row(metric="samples_per_s")).value == pytest.approx(256 / seconds)
    assert answer(row(metric="tokens_per_s")).value == pytest.approx(256 * 256 / seconds)
    assert answer(row(metric="tokens_per_s_per_gpu")).value == pytest.approx(32 * 256 / seconds)


def test_stages_add_up_to_the_iteration(row):
    stages = ("generation_time", "score_time", "train_time", "weight_sync_time", "overhead_time")
    total = sum(answer(row(metric=metric)).value for metric in stages)
    assert total == pytest.approx(answer(row()).value, rel=0.01)


def test_reduced_sizes_of_the_critic_take_less(row):
    small = answer(row(critic_model="opt-350m", reward_model="opt-350m")).value
    assert small < answer(row()).value


def test_mixed_devices_train_on_the_faster_ones(row):
    mixed = row(
        gpu="mixed:8xV100-32G+8xA100-80G",
        n_gpus="16",
        strategy="disaggregated",
        n_gpus_generate="8",
        n_gpus_train="8",
        metric="train_time",
    )
    assert answer(mixed).value == pytest.approx(answer(row(metric="train_time")).value, rel=0.2)


@pytest.mark.parametrize(
    "extreme",
    [
        {"n_gpus": "65536"},
        {"n_gpus": "", "tp_train": "1e12"},
        {"prompts_per_iteration": "1e12", "samples_per_prompt": "1e12"},
        {"num_minibatches": "1e12", "epochs": "1e12"},
        {"response_tokens_max": "1e12"},
        {"gpu": "mixed:999999xA100-80G"},
        {"gpu": "mixed:"},
    ],
)
def test_extremes_are_answered_at_once(row, extreme):
    assert answer(row(**extreme)).value > 0


def test_a_shared_sequence_takes_less_of_each_device(row):
    """Of 32 k tokens without recomputation each of eight devices holds an eighth, so that the cache
    is what takes most."""
    stated = {
        "system": "verl",
        "response_tokens_mean": "32640",
        "response_tokens_max": "32640",
        "recompute": "no",
        "metric": "peak_memory",
    }
    whole = answer(row(**stated, cp_train="1")).value
    shared = answer(row(**stated, cp_train="8")).value
    assert whole > 1.5 * shared


def test_divided_experts_take_less_of_each_device(row):
    stated = {"system": "NeMo-RL", "n_gpus": "64", "metric": "peak_memory", "tp_train": "2"}
    models = dict.fromkeys(("actor_model", "reference_model"), "mixtral-8x7b")
    whole = answer(row(**stated, **models, algorithm="grpo")).value
    divided = answer(row(**stated, **models, algorithm="grpo", ep_train="8")).value
    assert whole > 2 * divided
