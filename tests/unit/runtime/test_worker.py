"""A tiny worker with real models, driven by the real executor through whole iterations."""

from __future__ import annotations

import copy
import math
import statistics

import pytest
import torch

from flexrlhf.core.clock import WallClock
from flexrlhf.core.errors import StaleWeights
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.runtime.evaluation import is_evaluated, next_evaluation
from flexrlhf.runtime.executor import Executor
from flexrlhf.runtime.in_process import InProcessWorkers
from flexrlhf.runtime.launch import Launched
from flexrlhf.runtime.measurements import joined


def graph_of(launched: Launched, iteration: int):
    plan = one_device_plan(launched.spec)
    return iteration_graph(launched.spec, plan, launched.shape, iteration)


def run(launched: Launched, iterations: range) -> list[dict[str, float]]:
    """Runs whole iterations and returns their joined measurements."""
    group = InProcessWorkers({"main": launched.worker}, WallClock())
    executor = Executor(group, start_iteration=iterations.start, deadline_s=60)
    results = [executor.run(graph_of(launched, iteration)) for iteration in iterations]
    group.close()
    return [joined(result.measurements) for result in results]


def weights(launched: Launched) -> dict[str, torch.Tensor]:
    return {
        f"{role}.{name}": p.detach().clone()
        for role, model in launched.worker.models.items()
        for name, p in model.named_parameters()
    }


def assert_same_weights(one: Launched, other: Launched, tolerance: float = 0.0) -> None:
    theirs = weights(other)
    for name, ours in weights(one).items():
        torch.testing.assert_close(ours, theirs[name], rtol=tolerance, atol=tolerance, msg=name)


POLICY_KEYS = {
    "samples",
    "tokens",
    "reward/mean",
    "reward/std",
    "reward/length",
    "response_tokens/mean",
    "response_tokens/finished",
    "logprob_gap/max",
    "staleness/mean",
    "staleness/max",
    "weights/version",
    "loss/policy",
    "ratio/clip_fraction",
    "ratio/mean",
    "ratio/approx_kl",
    "entropy/mean",
    "grad_norm",
    "learning_rate",
    "kl/mean",
    "kl/coefficient",
}


PAIR_KEYS = {
    "samples",
    "tokens",
    "loss/preference",
    "accuracy/preference",
    "implicit_reward/chosen",
    "implicit_reward/rejected",
    "implicit_reward/margin",
    "logprobs/chosen",
    "logprobs/rejected",
    "grad_norm",
    "learning_rate",
}


@pytest.mark.parametrize(
    ("algorithm", "options", "keys"),
    [
        ("grpo", {}, POLICY_KEYS | {"loss/kl", "groups/zero_variance"}),
        (
            "ppo",
            {},
            POLICY_KEYS
            | {"loss/value", "critic/clip_fraction", "critic/grad_norm", "critic/learning_rate"},
        ),
        ("ppo", {"share_actor_critic": True}, POLICY_KEYS | {"loss/value", "critic/clip_fraction"}),
        ("ppo", {"kl_coef": 0.0}, None),
        ("sft", {}, {"samples", "tokens", "loss/supervised", "grad_norm", "learning_rate"}),
        (
            "reward_model",
            {},
            {"samples", "tokens", "loss/preference", "accuracy/preference", "grad_norm"}
            | {"learning_rate"},
        ),
        ("dpo", {"epochs": 2}, PAIR_KEYS),
        ("dpo", {"loss_type": "robust", "label_smoothing": 0.1}, PAIR_KEYS),
        ("ipo", {}, PAIR_KEYS),
    ],
)
def test_an_iteration_of_every_algorithm(make_launched, algorithm, options, keys):
    launched = make_launched(algorithm, algorithm=options)
    before = weights(launched)
    (metrics,) = run(launched, range(1))
    if keys is None:  # without KL there is no reference, and nothing said about it
        keys = POLICY_KEYS - {"kl/mean", "kl/coefficient"}
        keys |= {"loss/value", "critic/clip_fraction", "critic/grad_norm", "critic/learning_rate"}
    assert metrics.keys() == keys
    assert all(math.isfinite(value) for value in metrics.values())
    after = weights(launched)
    for name, tensor in after.items():
        is_trained = name.split(".")[0] in launched.spec.trained
        assert torch.equal(tensor, before[name]) is not is_trained, name


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "dpo", "sft", "reward_model"])
def test_bfloat16_keeps_weights_and_the_engine_agrees_with_the_trainer(
    make_document, make_launched, algorithm
):
    document = make_document(algorithm)["model"]
    models = {role: {**model, "dtype": "float32"} for role, model in document.items()}
    launched = make_launched(algorithm, model=models, training={"precision": "bfloat16"})
    for metrics in run(launched, range(2)):
        assert all(math.isfinite(value) for value in metrics.values())
        assert metrics.get("logprob_gap/max", 0.0) < 2e-2
    assert {p.dtype for p in weights(launched).values()} == {torch.float32}


@pytest.mark.parametrize(("precision", "is_rounded"), [("bfloat16", True), ("float32", False)])
def test_rewards_are_scored_as_the_policy_computes_in_training_and_in_evaluation(
    make_document, make_launched, files, precision, is_rounded
):
    actor = {**make_document("grpo")["model"]["actor"], "dtype": "float32"}
    launched = make_launched(
        "grpo",
        model={"actor": actor, "reward": actor},
        training={"precision": precision},
        data=evaluation(files, "prompts"),
    )
    found = []
    launched.worker.models["reward"].base_model.register_forward_hook(
        lambda *_: found.append(torch.is_autocast_enabled("cpu"))
    )
    launched.worker.judge_held_out(1)
    num_evaluations = len(found)
    run(launched, range(1))
    assert 0 < num_evaluations < len(found)
    assert set(found) == {is_rounded}


def test_metrics_are_those_of_the_samples(make_launched):
    launched = make_launched("grpo", rollout={"micro_batches": 3})
    (metrics,) = run(launched, range(1))
    samples = launched.worker.source.samples
    assert [sample.sample_id for sample in samples] == list(range(8))
    assert metrics["samples"] == 8
    assert metrics["tokens"] == sum(sample.num_tokens for sample in samples)
    rewards = [sample.reward for sample in samples]
    assert rewards == pytest.approx([0.1 * len(sample.text) for sample in samples])
    assert metrics["reward/mean"] == pytest.approx(statistics.fmean(rewards))
    assert metrics["reward/std"] == pytest.approx(statistics.stdev(rewards))
    lengths = [sample.num_response_tokens for sample in samples]
    assert metrics["response_tokens/mean"] == pytest.approx(statistics.fmean(lengths))
    finished = [sample.finished for sample in samples]
    assert metrics["response_tokens/finished"] == pytest.approx(statistics.fmean(finished))


def test_the_engine_generates_with_the_weights_that_the_trainer_has(make_launched):
    launched = make_launched("grpo")
    for metrics in run(launched, range(3)):
        assert metrics["logprob_gap/max"] < 1e-10
        assert metrics["staleness/max"] == 0


def test_installing_moves_the_version_that_samples_carry(make_launched):
    launched = make_launched("grpo")
    engine = launched.worker.source.generator.engine
    assert engine.weight_version == 0
    metrics = run(launched, range(2))
    assert [m["weights/version"] for m in metrics] == [1, 2]
    assert engine.weight_version == 2
    assert {sample.weight_version for sample in launched.worker.source.samples} == {1}


def test_generating_with_older_weights_than_the_task_needs_is_refused(make_launched):
    launched = make_launched("grpo")
    generate = graph_of(launched, 1).tasks[0]
    assert (generate.operation, generate.weight_version) == ("generate", 1)
    with pytest.raises(StaleWeights, match="holds weights 0, task generate/0 needs 1"):
        launched.worker.run(generate)


ONE_CUT = {"training": {"micro_batch_tokens": 1000}}
ONE_BY_ONE = {"training": {"micro_batch_tokens": "auto", "micro_batch_samples": 1}}
IN_PARTS = {"rollout": {"micro_batches": 4}}
RECOMPUTED = {"training": {"gradient_checkpointing": True}}


@pytest.mark.parametrize(
    ("algorithm", "cut"),
    [
        *((name, ONE_CUT) for name in ("ppo", "grpo", "sft", "reward_model")),
        *((name, ONE_BY_ONE) for name in ("ppo", "grpo", "sft", "reward_model")),
        *((name, IN_PARTS) for name in ("ppo", "grpo")),
        *((name, RECOMPUTED) for name in ("ppo", "sft", "reward_model")),
    ],
)
def test_how_the_work_is_cut_does_not_show(make_launched, algorithm, cut):
    usual, other = make_launched(algorithm), make_launched(algorithm, **cut)
    # The first iteration alone: a rounding may tip a later draw.
    expected, found = run(usual, range(1)), run(other, range(1))
    assert found[0] == pytest.approx(expected[0], rel=1e-7, abs=1e-9)
    assert_same_weights(usual, other, tolerance=1e-8)


def test_epochs_and_mini_batches_step_that_often(make_launched):
    launched = make_launched(
        "ppo", algorithm={"epochs": 2}, training={"mini_batch_samples": 2, "warmup_steps": 16}
    )
    run(launched, range(1))
    steps = 2 * (8 // 2)
    (metrics,) = run(launched, range(1, 2))
    # Over the steps of an iteration, the mean rate of a linear warm-up of 16 steps.
    expected = statistics.fmean(0.05 * (step + 1) / 16 for step in range(steps, 2 * steps))
    assert metrics["learning_rate"] == pytest.approx(expected)


def test_a_worker_restored_from_a_checkpoint_goes_on_bit_for_bit(make_launched, tmp_path):
    options = {"algorithm": {"kl_target": 0.5, "kl_horizon": 20}}
    unbroken = make_launched("ppo", **options)
    run(unbroken, range(2))
    unbroken.worker.save(tmp_path, {})
    state = copy.deepcopy(unbroken.worker.state())
    resumed = make_launched("ppo", **options)
    resumed.worker.load(tmp_path)
    resumed.worker.restore_state(state)
    resumed.worker.take_weights(2)
    assert run(resumed, range(2, 4)) == run(unbroken, range(2, 4))
    assert_same_weights(resumed, unbroken)
    assert resumed.worker.state() == unbroken.worker.state()


def test_the_kl_coefficient_of_an_iteration_comes_from_those_before(make_launched):
    launched = make_launched("ppo", algorithm={"kl_coef": 0.2, "kl_target": 0.5, "kl_horizon": 20})
    metrics = run(launched, range(3))
    coefficient = 0.2
    for measured in metrics:
        assert measured["kl/coefficient"] == pytest.approx(coefficient, rel=1e-9)
        per_answer = measured["kl/mean"] * measured["response_tokens/mean"]
        error = max(-0.2, min(0.2, per_answer / 0.5 - 1))
        coefficient *= 1 + error * 8 / 20


def test_rows_are_drawn_in_the_seeded_order(make_launched):
    launched = make_launched("sft")
    drawn = []
    for iteration in range(3):
        run(launched, range(iteration, iteration + 1))
        drawn += [item.index for item in launched.worker.source.items_of(iteration)]
    assert sorted(drawn[:6]) == sorted(drawn[6:]) == list(range(6))


def test_bytes_of_trained_and_frozen_roles(make_launched):
    launched = make_launched("ppo")
    held = launched.worker.role_bytes()
    assert held.keys() == {"actor", "critic", "reference"}
    weights_bytes = sum(8 * p.numel() for p in launched.worker.models["actor"].parameters())
    assert (held["actor"].weights, held["actor"].optimizer) == (weights_bytes, 2 * weights_bytes)
    assert held["reference"].optimizer == 0


def test_models_are_written_for_every_trained_role(make_launched, tmp_path):
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    launched = make_launched("ppo")
    run(launched, range(1))
    (tmp_path / "model").mkdir()
    launched.worker.write_models(tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["actor", "critic"]
    assert (tmp_path / "model" / "actor" / "tokenizer.json").is_file()
    for role, auto_class in (
        ("actor", AutoModelForCausalLM),
        ("critic", AutoModelForSequenceClassification),
    ):
        loaded = auto_class.from_pretrained(tmp_path / "model" / role, dtype=torch.float64)
        for name, parameter in launched.worker.models[role].named_parameters():
            assert torch.equal(loaded.get_parameter(name), parameter), name


def evaluation(files, kind: str, **options) -> dict:
    return {"evaluation": {"path": files[kind], "every": 2, "samples": 3, **options}}


def test_evaluation_is_due_first_last_and_every_so_often(make_launched, files):
    config = make_launched("grpo", data=evaluation(files, "prompts")).config
    assert [iteration for iteration in range(4) if is_evaluated(config, iteration)] == [0, 2, 3]
    assert [next_evaluation(config, finished) for finished in range(5)] == [2, 2, 3, 4, 6]
    without = make_launched("grpo").config
    assert not is_evaluated(without, 0)
    assert next_evaluation(without, 0) == math.inf


def test_evaluation_of_answers_is_repeatable_and_trains_nothing(make_launched, files):
    launched = make_launched("grpo", data=evaluation(files, "prompts"))
    before = weights(launched)
    metrics, samples = launched.worker.evaluate()
    assert metrics["eval/reward"] == pytest.approx(statistics.fmean(s.reward for s in samples))
    assert metrics["eval/reward_length"] == metrics["eval/reward"]
    assert len(samples) == 3
    again, same = launched.worker.evaluate()
    assert again == metrics
    assert [s.text for s in same] == [s.text for s in samples]
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(launched).items())


@pytest.mark.parametrize(
    ("algorithm", "kind", "names"),
    [
        ("sft", "supervised", {"eval/loss_supervised"}),
        ("reward_model", "preferences", {"eval/loss_preference", "eval/accuracy_preference"}),
    ],
)
def test_evaluation_of_losses_is_the_training_loss_before_the_step(
    make_launched, files, algorithm, kind, names
):
    """All six rows are trained on in one step, and evaluated: the losses must agree."""
    launched = make_launched(
        algorithm,
        data=evaluation(files, kind, samples=6),
        training={"prompts_per_iteration": 6},
    )
    metrics, samples = launched.worker.evaluate()
    assert metrics.keys() == names
    assert samples == []
    (trained,) = run(launched, range(1))
    for name in names:
        stem = "loss" if "loss" in name else "accuracy"
        same = trained[name.replace(f"eval/{stem}_", f"{stem}/")]
        assert metrics[name] == pytest.approx(same, rel=1e-12)
