"""Metrics of a mini-batch do not depend on its micro-batches, and bad losses stop the run."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
from torch import nn

from flexrlhf.core.errors import RunFailed
from flexrlhf.learning.algorithms.importance import Importance
from flexrlhf.learning.data.collation import COLLATE, num_sequences, num_trainable_tokens
from flexrlhf.learning.data.preferences import PreferencePair
from flexrlhf.learning.training.objectives import (
    GlobalCounts,
    PolicyObjective,
    PreferenceObjective,
    ValueObjective,
)
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.optimizer import OptimizerSettings
from flexrlhf.learning.training.step import RoleTrainer

SETTINGS = OptimizerSettings(0.01, total_steps=4)
POLICY = PolicyObjective(
    clip_low=0.2,
    clip_high=0.3,
    dual_clip=None,
    aggregation="token_mean",
    entropy_coef=0.01,
    kl_coef=0.1,
    kl_estimator="k3",
    temperature=0.7,
)
SPLITS = ([[0, 1, 2, 3, 4, 5]], [[0], [1], [2], [3], [4], [5]], [[5, 1], [3, 2, 0], [4]])


def counts_of(items) -> GlobalCounts:
    return GlobalCounts(
        sum(num_trainable_tokens(item) for item in items),
        sum(num_sequences(item) for item in items),
        max_tokens=12,
    )


def metrics_of(trainer: RoleTrainer, items, split, kind="prompts") -> dict[str, float]:
    counts = counts_of(items)
    for positions in split:
        batch = COLLATE[kind]([items[p] for p in positions], trainer.objective.fields)
        trainer.accumulate(batch, counts)
    return trainer.step(counts)


def with_model_logprobs(model: nn.Module, samples):
    """Makes old log-probs such that many ratios are beyond the clip."""
    for sample in samples:
        with torch.no_grad():
            logits = model(sample.tokens[None]).logits[0] / 0.7
        logprobs = logits.log_softmax(-1)[:-1].gather(1, sample.tokens[1:, None])[:, 0]
        noise = 0.5 * (sample.fields["reference_logprobs"] + 3.0)
        sample.fields["old_logprobs"] = sample.mask * (
            torch.cat((torch.zeros(1), logprobs)) + noise
        )
    return samples


@pytest.mark.parametrize("split", SPLITS[1:])
def test_policy_metrics_are_those_of_the_unsplit_mini_batch(make_model, samples, split):
    with_model_logprobs(make_model(), samples)
    whole, cut = (
        metrics_of(
            RoleTrainer("actor", OneDeviceBackend(make_model(), SETTINGS), POLICY), samples, s
        )
        for s in (SPLITS[0], split)
    )
    assert cut.keys() == whole.keys()
    assert whole.keys() == {
        "loss/policy",
        "loss/kl",
        "ratio/clip_fraction",
        "ratio/mean",
        "ratio/approx_kl",
        "entropy/mean",
        "grad_norm",
        "learning_rate",
    }
    for name, value in whole.items():
        assert cut[name] == pytest.approx(value, rel=1e-10), name


def test_clip_fraction_and_entropy_are_means_over_all_trainable_tokens(make_model, samples):
    model = make_model()
    with_model_logprobs(model, samples)
    clipped, entropies = 0, []
    for sample in samples:
        with torch.no_grad():
            logprobs = (model(sample.tokens[None]).logits[0] / 0.7).log_softmax(-1)
        for t in range(1, len(sample.tokens)):
            if not sample.mask[t]:
                continue
            row = logprobs[t - 1]
            entropies.append(-(row.exp() * row).sum().item())
            log_ratio = row[sample.tokens[t]].item() - sample.fields["old_logprobs"][t].item()
            advantage = sample.fields["advantages"][t].item()
            is_high, is_low = math.exp(log_ratio) > 1.3, math.exp(log_ratio) < 0.8
            clipped += (is_high and advantage > 0) or (is_low and advantage < 0)
    trainer = RoleTrainer("actor", OneDeviceBackend(model, SETTINGS), POLICY)
    metrics = metrics_of(trainer, samples, SPLITS[2])
    assert 0 < clipped < len(entropies)
    assert metrics["ratio/clip_fraction"] == pytest.approx(clipped / len(entropies), rel=1e-12)
    assert metrics["entropy/mean"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-10)


@pytest.mark.parametrize("split", SPLITS)
def test_on_policy_old_log_probs_are_the_live_ones(make_model, samples, split):
    model = make_model()
    gaps = []
    for sample in samples:
        with torch.no_grad():
            logits = model(sample.tokens[None]).logits[0] / 0.7
        logprobs = logits.log_softmax(-1)[:-1].gather(1, sample.tokens[1:, None])[:, 0]
        sample.fields["old_logprobs"] = sample.mask * torch.cat((torch.zeros(1), logprobs))
        error = 0.01 * (sample.sample_id + 1) * torch.linspace(-1, 0.5, sample.num_tokens)
        sample.fields["logprobs"] = sample.fields["old_logprobs"] + error
        gaps.append((error * sample.mask).abs().max().item())
    models = make_model(), make_model()
    objectives = POLICY, replace(POLICY, is_on_policy=True)
    scored, once = (
        metrics_of(RoleTrainer("actor", OneDeviceBackend(m, SETTINGS), o), samples, split)
        for m, o in zip(models, objectives, strict=True)
    )
    assert once.pop("logprob_gap/max") == pytest.approx(max(gaps), rel=1e-9)
    assert once == pytest.approx(scored, rel=1e-9, abs=1e-12)
    for first, second in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("split", SPLITS)
def test_answers_of_another_policy_are_weighed_by_the_trainers_own_log_probs(
    make_model, samples, split, level
):
    """Scored before, or by the one pass that trains; cut into micro-batches or not."""
    cap, ratios, answers = 1.3, [], []
    for sample in samples:
        with torch.no_grad():
            logits = make_model()(sample.tokens[None]).logits[0] / 0.7
        logprobs = logits.log_softmax(-1)[:-1].gather(1, sample.tokens[1:, None])[:, 0]
        sample.fields["old_logprobs"] = sample.mask * torch.cat((torch.zeros(1), logprobs))
        error = 0.3 * torch.sin(torch.arange(sample.num_tokens) + sample.sample_id)
        sample.fields["sampling_logprobs"] = sample.fields["old_logprobs"] + error
        sample.fields["logprobs"] = sample.fields["sampling_logprobs"]
        ratios.append([math.exp(-e) for e in error[sample.mask].tolist()])
        answers.append(math.prod(ratios[-1]))
    objective = replace(POLICY, importance=Importance(level, cap))
    models = make_model(), make_model()
    scored, once = (
        metrics_of(RoleTrainer("actor", OneDeviceBackend(m, SETTINGS), o), samples, split)
        for m, o in zip(models, (objective, replace(objective, is_on_policy=True)), strict=True)
    )
    assert once.pop("logprob_gap/max") > 0.2
    assert once == pytest.approx(scored, rel=1e-9, abs=1e-12)
    for first, second in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-12)
    free = [
        ratio if level == "token" else answers[row]
        for row, of_answer in enumerate(ratios)
        for ratio in of_answer
    ]
    kl = [ratio - 1 - math.log(ratio) for of_answer in ratios for ratio in of_answer]
    mean, capped = (
        statistics.fmean(numbers)
        for numbers in ([min(x, cap) for x in free], [float(x > cap) for x in free])
    )
    assert 0 < capped < 1
    assert once["importance/mean"] == pytest.approx(mean, rel=1e-6)
    assert once["importance/capped_fraction"] == pytest.approx(capped, rel=1e-12)
    assert once["importance/approx_kl"] == pytest.approx(statistics.fmean(kl), rel=1e-5)


def test_a_gap_that_is_no_number_is_not_lost(make_model, samples):
    samples[0].fields["logprobs"] = torch.full((samples[0].num_tokens,), math.nan)
    for sample in samples[1:]:
        sample.fields["logprobs"] = torch.zeros(sample.num_tokens)
    objective = replace(POLICY, is_on_policy=True)
    trainer = RoleTrainer("actor", OneDeviceBackend(make_model(), SETTINGS), objective)
    assert math.isnan(metrics_of(trainer, samples, SPLITS[2])["logprob_gap/max"])


def test_a_second_mini_batch_starts_from_nothing(make_model, samples):
    settings = OptimizerSettings(1e-30, total_steps=4)
    trainer = RoleTrainer("actor", OneDeviceBackend(make_model(), settings), POLICY)
    first = metrics_of(trainer, samples, SPLITS[2])
    assert metrics_of(trainer, samples, SPLITS[2]) == pytest.approx(first, rel=1e-12)


def test_the_critics_norm_and_rate_have_names_of_their_own(make_model, samples):
    trainer = RoleTrainer(
        "critic", OneDeviceBackend(make_model("scorer"), SETTINGS), ValueObjective(clip=0.2)
    )
    metrics = metrics_of(trainer, samples, SPLITS[0])
    assert metrics.keys() == {
        "loss/value",
        "critic/clip_fraction",
        "critic/grad_norm",
        "critic/learning_rate",
    }
    assert metrics["critic/learning_rate"] == 0.01


@pytest.mark.parametrize("split", [[[0, 1, 2, 3]], [[0], [1], [2], [3]], [[3, 1], [2, 0]]])
def test_accuracy_is_the_part_of_pairs_in_the_right_order(make_model, split):
    generator = torch.Generator().manual_seed(1)
    answers = [
        tuple(torch.randint(29, (length,), generator=generator).tolist())
        for length in (6, 9, 4, 4, 11, 7, 5, 8)
    ]
    model = make_model("scorer")
    with torch.no_grad():
        scores = [model(torch.tensor([tokens])).logits.item() for tokens in answers]
    pairs = [PreferencePair(i, answers[2 * i], answers[2 * i + 1], 1) for i in range(4)]
    right = sum(scores[2 * i] > scores[2 * i + 1] for i in range(4))
    trainer = RoleTrainer("reward", OneDeviceBackend(model, SETTINGS), PreferenceObjective())
    metrics = metrics_of(trainer, pairs, split, "preferences")
    assert metrics["accuracy/preference"] == right / 4
    expected = sum(math.log1p(math.exp(scores[2 * i + 1] - scores[2 * i])) / 4 for i in range(4))
    assert metrics["loss/preference"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_the_run_and_changes_nothing(make_model, samples, spoilt):
    model = make_model("scorer")
    trainer = RoleTrainer("critic", OneDeviceBackend(model, SETTINGS), ValueObjective(clip=0.2))
    before = [p.detach().clone() for p in model.parameters()]
    counts = counts_of(samples)
    fields = trainer.objective.fields
    trainer.accumulate(COLLATE["prompts"](samples[:1], fields), counts)
    gradients = [p.grad.clone() for p in model.parameters()]
    samples[2].fields["returns"][-1] = spoilt
    with pytest.raises(RunFailed, match=r"role critic is (nan|inf) on samples 101, 102"):
        trainer.accumulate(COLLATE["prompts"](samples[1:3], fields), counts)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))


def test_an_error_names_few_of_many_samples(make_model, samples):
    trainer = RoleTrainer(
        "critic", OneDeviceBackend(make_model("scorer"), SETTINGS), ValueObjective(clip=0.2)
    )
    samples[0].fields["returns"][-1] = math.nan
    batch = COLLATE["prompts"](samples, trainer.objective.fields)
    with pytest.raises(RunFailed, match=r"samples 100, 101, 102, 103, \.\.\."):
        trainer.accumulate(batch, counts_of(samples))
