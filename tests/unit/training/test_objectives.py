"""Every loss against a loop over tokens, and the same loss and gradient however it is cut.

The cut must not show: dividing by a micro-batch's own counts is the classic mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from flexrlhf.core.names import PreferenceLossName
from flexrlhf.learning.algorithms.aggregation import AGGREGATIONS
from flexrlhf.learning.data.collation import (
    COLLATE,
    item_tokens,
    num_sequences,
    num_trainable_tokens,
)
from flexrlhf.learning.data.experience import Batch, Sample, pack_by_tokens
from flexrlhf.learning.data.preferences import PreferencePair
from flexrlhf.learning.data.supervised import SupervisedExample
from flexrlhf.learning.training.objectives import (
    DirectPreferenceObjective,
    GlobalCounts,
    Objective,
    PolicyObjective,
    PreferenceObjective,
    SharedObjective,
    SupervisedObjective,
    ValueObjective,
)

MAX_TOKENS = 11
KINDS = get_args(PreferenceLossName)
POLICY = PolicyObjective(
    clip_low=0.2,
    clip_high=0.4,
    dual_clip=3.0,
    aggregation="token_mean",
    entropy_coef=0.03,
    kl_coef=0.2,
    kl_estimator="k3",
    temperature=0.8,
)
PLAIN = replace(POLICY, entropy_coef=0.0, kl_coef=0.0, dual_clip=None)
VALUE = ValueObjective(clip=0.3)
CASES = {
    **{f"policy {mode}": ("policy", replace(POLICY, aggregation=mode)) for mode in AGGREGATIONS},
    "policy k2": ("policy", replace(POLICY, kl_estimator="k2")),
    "policy without KL and entropy": ("policy", PLAIN),
    "value": ("scorer", VALUE),
    "value without clip": ("scorer", ValueObjective(clip=math.inf)),
    "shared": ("shared", SharedObjective(POLICY, VALUE, value_coef=0.5)),
    "supervised": ("policy", SupervisedObjective()),
    "preference": ("scorer", PreferenceObjective()),
    **{f"pairs {k}": ("policy", DirectPreferenceObjective(k, beta=0.3)) for k in KINDS},
    "pairs, smoothed": ("policy", DirectPreferenceObjective("sigmoid", 0.3, label_smoothing=0.1)),
}
every_case = pytest.mark.parametrize("case", CASES)


def items_for(objective: Objective, samples: list[Sample]) -> tuple[str, list]:
    """Returns the data kind and the items that an objective learns from."""
    if isinstance(objective, SupervisedObjective):
        examples = [
            SupervisedExample(s.sample_id, tuple(s.tokens.tolist()), tuple(s.mask.tolist()))
            for s in samples
        ]
        return "supervised", examples
    if isinstance(objective, PreferenceObjective | DirectPreferenceObjective):
        return "preferences", [
            PreferencePair(
                s.sample_id,
                tuple(s.tokens.tolist()),
                tuple(other.tokens.tolist()),
                num_prompt_tokens=2,
                fields={
                    "reference_logprobs": tuple(
                        one.fields["reference_logprobs"] * (torch.arange(one.num_tokens) > 1)
                        for one in (s, other)
                    )
                },
            )
            for s, other in zip(samples, samples[::-1], strict=True)
        ]
    return "prompts", samples


def counts_of(items: Sequence) -> GlobalCounts:
    return GlobalCounts(
        num_tokens=sum(num_trainable_tokens(item) for item in items),
        num_sequences=sum(num_sequences(item) for item in items),
        max_tokens=MAX_TOKENS,
    )


def widened(batch: Batch, columns: int) -> Batch:
    """Returns the batch with more padding, of tokens that mean nothing."""
    fields = {name: pad(values, (0, columns), value=7.0) for name, values in batch.fields.items()}
    return replace(
        batch,
        tokens=pad(batch.tokens, (0, columns), value=5),
        mask=pad(batch.mask, (0, columns)),
        fields=fields,
    )


def loss_and_gradient(
    objective: Objective, model: nn.Module, kind: str, items: list, split, columns: int = 0
) -> tuple[float, Tensor]:
    """Adds up the micro-batches of `split`, each with the counts of the whole."""
    model.zero_grad()
    total = 0.0
    for positions in split:
        batch = COLLATE[kind]([items[p] for p in positions], objective.fields)
        loss = objective(model, widened(batch, columns), counts_of(items)).loss
        loss.backward()
        total += loss.item()
    return total, torch.cat([p.grad.flatten() for p in model.parameters()])


@every_case
def test_loss_and_gradient_do_not_depend_on_the_cut(make_model, samples, case):
    model_kind, objective = CASES[case]
    model = make_model(model_kind)
    kind, items = items_for(objective, samples)
    everything = list(range(len(items)))
    expected = loss_and_gradient(objective, model, kind, items, [everything])
    assert expected[1].norm() > 1e-3
    lengths = [item_tokens(item) for item in items]
    splits = {
        "one by one": [[p] for p in everything],
        "last first": [everything[::-1]],
        "uneven": [[4, 0, 5], [2], [1, 3]],
        **{f"{n} tokens": pack_by_tokens(lengths, max_tokens=n) for n in (28, 40)},
    }
    for name, split in splits.items():
        loss, gradient = loss_and_gradient(objective, model, kind, items, split)
        assert loss == pytest.approx(expected[0], rel=1e-10), name
        torch.testing.assert_close(gradient, expected[1], rtol=1e-8, atol=1e-12)
    loss, gradient = loss_and_gradient(objective, model, kind, items, [everything], columns=6)
    assert loss == pytest.approx(expected[0], rel=1e-10)
    torch.testing.assert_close(gradient, expected[1], rtol=1e-8, atol=1e-12)


@every_case
def test_dividing_by_the_counts_of_the_micro_batch_would_be_another_loss(make_model, samples, case):
    model_kind, objective = CASES[case]
    kind, items = items_for(objective, samples)
    model = make_model(model_kind)
    whole = loss_and_gradient(objective, model, kind, items, [list(range(len(items)))])[0]
    parts = [items[:1], items[1:]]
    mean = sum(
        loss_and_gradient(objective, model, kind, part, [list(range(len(part)))])[0] / 2
        for part in parts
    )
    assert mean != pytest.approx(whole, rel=1e-3)


def distributions(model: nn.Module, tokens: Tensor, temperature: float) -> Tensor:
    """Returns log p(. | tokens_<t) for t = 1, 2, ... from the model's own logits."""
    with torch.no_grad():
        return (model(tokens[None]).logits[0, :-1] / temperature).log_softmax(-1)


def aggregated(rows: list[list[float]], mode: str) -> float:
    match mode:
        case "token_mean":
            return math.fsum(x for row in rows for x in row) / sum(len(row) for row in rows)
        case "sequence_mean":
            return math.fsum(math.fsum(row) / len(row) for row in rows) / len(rows)
        case "sequence_sum":
            return math.fsum(x for row in rows for x in row) / len(rows)
    return math.fsum(x for row in rows for x in row) / (len(rows) * MAX_TOKENS)


def policy_token_loss(objective: PolicyObjective, ratio: float, advantage: float) -> float:
    low, high = 1 - objective.clip_low, 1 + objective.clip_high
    surrogate = min(ratio * advantage, max(low, min(high, ratio)) * advantage)
    if objective.dual_clip is not None and advantage < 0:
        surrogate = max(surrogate, objective.dual_clip * advantage)
    return -surrogate


def policy_by_loop(objective: PolicyObjective, model: nn.Module, samples: list[Sample]) -> float:
    rows = []
    for sample in samples:
        logprobs = distributions(model, sample.tokens, objective.temperature)
        row = []
        for t in range(sample.num_prompt_tokens, len(sample.tokens)):
            own = logprobs[t - 1, sample.tokens[t]].item()
            fields = {name: values[t].item() for name, values in sample.fields.items()}
            ratio = math.exp(own - fields["old_logprobs"])
            loss = policy_token_loss(objective, ratio, fields["advantages"])
            entropy = -(logprobs[t - 1].exp() * logprobs[t - 1]).sum().item()
            d = own - fields["reference_logprobs"]
            kl = d * d / 2 if objective.kl_estimator == "k2" else math.exp(-d) - 1 + d
            row.append(loss - objective.entropy_coef * entropy + objective.kl_coef * kl)
        rows.append(row)
    return aggregated(rows, objective.aggregation)


def value_by_loop(objective: ValueObjective, values: list[list[float]], samples) -> float:
    losses = []
    for sample, row in zip(samples, values, strict=True):
        for t in range(sample.num_prompt_tokens, len(sample.tokens)):
            old, wanted = (sample.fields[name][t].item() for name in ("values", "returns"))
            near = max(old - objective.clip, min(old + objective.clip, row[t - 1]))
            losses.append(0.5 * max((row[t - 1] - wanted) ** 2, (near - wanted) ** 2))
    return math.fsum(losses) / len(losses)


def unsplit(objective: Objective, model: nn.Module, samples: list[Sample]) -> float:
    kind, items = items_for(objective, samples)
    batch = COLLATE[kind](items, objective.fields)
    return objective(model, batch, counts_of(items)).loss.item()


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("policy")])
def test_the_policy_loss_by_a_loop_over_tokens(make_model, samples, case):
    objective = CASES[case][1]
    expected = policy_by_loop(objective, make_model(), samples)
    assert unsplit(objective, make_model(), samples) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("clip", [0.3, math.inf])
def test_the_value_loss_by_a_loop_over_tokens(make_model, samples, clip):
    model, objective = make_model("scorer"), ValueObjective(clip)
    with torch.no_grad():
        values = [
            model.score(model.model(s.tokens[None]).last_hidden_state)[0, :, 0].tolist()
            for s in samples
        ]
    expected = value_by_loop(objective, values, samples)
    assert unsplit(objective, model, samples) == pytest.approx(expected, rel=1e-9)


def test_the_shared_loss_is_policy_plus_weighted_value(make_model, samples):
    model = make_model("shared")
    with torch.no_grad():
        values = [
            model.value_head(model.trunk.model(s.tokens[None]).last_hidden_state)[0, :, 0].tolist()
            for s in samples
        ]
    objective = SharedObjective(POLICY, VALUE, value_coef=0.5)
    expected = policy_by_loop(POLICY, model.trunk, samples)
    expected += 0.5 * value_by_loop(VALUE, values, samples)
    assert unsplit(objective, model, samples) == pytest.approx(expected, rel=1e-9)


def test_the_supervised_loss_is_that_of_transformers(make_model, samples):
    model, total, count = make_model(), 0.0, 0
    for sample in samples:
        labels = sample.tokens.masked_fill(~sample.mask, -100)
        with torch.no_grad():
            mean = model(sample.tokens[None], labels=labels[None]).loss.item()
        total += mean * int(sample.mask.sum())
        count += int(sample.mask.sum())
    assert unsplit(SupervisedObjective(), model, samples) == pytest.approx(total / count, rel=1e-6)


def test_the_preference_loss_by_a_loop_over_pairs(make_model, samples):
    model = make_model("scorer")
    with torch.no_grad():
        scores = [model(s.tokens[None]).logits.item() for s in samples]
    pairs = zip(scores, scores[::-1], strict=True)
    expected = math.fsum(math.log1p(math.exp(worse - better)) for better, worse in pairs) / 6
    assert unsplit(PreferenceObjective(), model, samples) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["sigmoid", "ipo"])
def test_the_loss_of_a_policy_on_pairs_by_a_loop_over_tokens(make_model, samples, kind):
    """The prompt's two tokens count nowhere, and both answers of a pair share one batch."""
    model, objective = make_model(), DirectPreferenceObjective(kind, beta=0.3)
    _, pairs = items_for(objective, samples)
    losses = []
    for pair in pairs:
        ratios, sizes = [], []
        for place, tokens in enumerate((pair.chosen_tokens, pair.rejected_tokens)):
            said = distributions(model, torch.tensor(tokens), 1.0)
            own = math.fsum(said[t - 1, tokens[t]].item() for t in range(2, len(tokens)))
            reference = pair.fields["reference_logprobs"][place]
            ratios.append(own - math.fsum(reference[t].item() for t in range(2, len(tokens))))
            sizes.append(len(tokens) - 2)
        if kind == "sigmoid":
            losses.append(math.log1p(math.exp(-0.3 * (ratios[0] - ratios[1]))))
        else:
            means = [ratio / size for ratio, size in zip(ratios, sizes, strict=True)]
            losses.append((means[0] - means[1] - 1 / 0.6) ** 2)
    expected = math.fsum(losses) / len(losses)
    assert unsplit(objective, model, samples) == pytest.approx(expected, rel=1e-9)


def test_sums_add_up_over_micro_batches(make_model, samples):
    model, counts = make_model(), counts_of(samples)
    sums = []
    for split in ([[0, 1, 2, 3, 4, 5]], [[3], [0, 5], [1, 2, 4]]):
        total: dict[str, float] = {}
        for positions in split:
            batch = COLLATE["prompts"]([samples[p] for p in positions], POLICY.fields)
            for name, value in POLICY(model, batch, counts).sums.items():
                assert not value.requires_grad
                total[name] = total.get(name, 0.0) + value.item()
        sums.append(total)
    assert sums[1] == pytest.approx(sums[0], rel=1e-10)
    assert sums[0].keys() == {
        *("loss/policy", "loss/kl", "clipped_tokens", "ratio_sum", "approx_kl_sum"),
        "entropy_sum",
    }


def test_fields_are_those_that_the_loss_needs():
    assert PLAIN.fields == ("old_logprobs", "advantages")
    assert POLICY.fields == ("old_logprobs", "advantages", "reference_logprobs")
    both = SharedObjective(PLAIN, VALUE, value_coef=1.0)
    assert both.fields == ("old_logprobs", "advantages", "values", "returns")
    assert SupervisedObjective().fields == PreferenceObjective().fields == ()
