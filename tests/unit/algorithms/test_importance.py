"""Importance weights against a scalar loop, and against all answers there are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from flexrlhf.core.errors import ConfigError, ShapeError
from flexrlhf.learning.algorithms.importance import (
    Importance,
    ImportanceLevel,
    importance_weights,
)
from flexrlhf.learning.algorithms.policy import clipped_policy_loss

MODES = ("token_mean", "sequence_mean", "sequence_sum", "token_sum_norm")
LEVELS: tuple[ImportanceLevel, ...] = ("token", "sequence")
MASK = torch.tensor(
    [[0, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]],
    dtype=torch.bool,
)


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns log-probs live, old and of the behaviour policy, and advantages; nan where masked."""
    generator = torch.Generator().manual_seed(5)
    behaviour = -3 * torch.rand(4, 6, dtype=torch.float64, generator=generator)
    old = behaviour + 0.6 * torch.randn(4, 6, dtype=torch.float64, generator=generator)
    live = old + 0.3 * torch.randn(4, 6, dtype=torch.float64, generator=generator)
    advantages = torch.randn(4, 6, dtype=torch.float64, generator=generator)
    for tensor in (behaviour, old, live, advantages):
        tensor[~MASK] = math.nan
    return live, old, behaviour, advantages


def loop_weights(level: str, cap: float) -> tuple[list[list[float]], int, float]:
    """Returns weights, capped tokens, and the sum of k3 of KL(behaviour || old)."""
    _, old, behaviour, _ = (tensor.tolist() for tensor in batch())
    weights, capped, kl = [], 0, 0.0
    for row, mask in enumerate(MASK.tolist()):
        places = [t for t, is_in in enumerate(mask) if is_in]
        ratios = {t: math.exp(old[row][t] - behaviour[row][t]) for t in places}
        product = math.prod(ratios.values())
        row_weights = [0.0] * len(mask)
        for t in places:
            weight = ratios[t] if level == "token" else product
            capped += weight > cap
            row_weights[t] = min(weight, cap)
            kl += ratios[t] - 1 - math.log(ratios[t])
        weights.append(row_weights)
    return weights, capped, kl


def loop_loss(live: Tensor, mode: str, level: str, cap: float) -> Tensor:
    """The corrected surrogate, token by token: the paper's equation, differentiable in `live`."""
    _, old, _, advantages = batch()
    weights, _, _ = loop_weights(level, cap)
    total = torch.zeros((), dtype=torch.float64)
    for row, mask in enumerate(MASK.tolist()):
        places = [t for t, is_in in enumerate(mask) if is_in]
        answer = torch.zeros((), dtype=torch.float64)
        for t in places:
            ratio = torch.exp(live[row, t] - old[row, t])
            inside = ratio.clamp(0.8, 1.3)
            gain = torch.minimum(ratio * advantages[row, t], inside * advantages[row, t])
            answer = answer - weights[row][t] * gain
        total = total + answer / (len(places) if mode == "sequence_mean" else 1)
    divisors = {"token_mean": int(MASK.sum()), "token_sum_norm": 4 * 8}
    return total / divisors.get(mode, 4)


@pytest.mark.parametrize("cap", [0.8, 1.2, math.inf])
@pytest.mark.parametrize("level", LEVELS)
def test_weights_are_those_of_the_loop(level: ImportanceLevel, cap: float) -> None:
    _, old, behaviour, _ = batch()
    found = importance_weights(old, behaviour, MASK, Importance(level, cap))
    weights, capped, kl = loop_weights(level, cap)
    torch.testing.assert_close(found.weights_BT, torch.tensor(weights, dtype=torch.float64))
    assert found.weight_sum.item() == pytest.approx(sum(map(sum, weights)), rel=1e-12)
    assert found.capped_tokens.item() == capped
    assert (capped > 0) == (cap < math.inf)
    assert found.approx_kl_sum.item() == pytest.approx(kl, rel=1e-12)


@pytest.mark.parametrize("cap", [1.2, math.inf])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", MODES)
def test_the_corrected_loss_and_its_gradient_are_those_of_the_loop(
    mode: str, level: ImportanceLevel, cap: float
) -> None:
    live, old, behaviour, advantages = batch()
    counts = {"num_tokens": int(MASK.sum()), "num_sequences": 4, "max_tokens": 8}

    def loss_of(logprobs: Tensor) -> Tensor:
        weights = importance_weights(old, behaviour, MASK, Importance(level, cap))
        return clipped_policy_loss(
            logprobs,
            old,
            advantages,
            MASK,
            weights_BT=weights.weights_BT,
            clip_low=0.2,
            clip_high=0.3,
            aggregation=mode,  # type: ignore[arg-type]
            **counts,
        ).loss

    ours, theirs = live.clone().requires_grad_(), live.clone().requires_grad_()
    expected = loop_loss(theirs, mode, level, cap)
    found = loss_of(ours)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    found.backward()
    expected.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad[MASK], theirs.grad[MASK], rtol=1e-12, atol=1e-14)
    assert torch.equal(ours.grad[~MASK], torch.zeros(int((~MASK).sum()), dtype=torch.float64))


@pytest.mark.parametrize("level", LEVELS)
def test_the_same_policy_weighs_one(level: ImportanceLevel) -> None:
    live, old, _, advantages = batch()
    found = importance_weights(old, old.clone(), MASK, Importance(level, 2.0))
    assert torch.equal(found.weights_BT, MASK.double())
    assert found.capped_tokens == 0
    assert found.approx_kl_sum == 0
    counts = {"num_tokens": int(MASK.sum()), "num_sequences": 4, "max_tokens": 8}
    weighted, plain = (
        clipped_policy_loss(
            live, old, advantages, MASK, weights_BT=weights, clip_low=0.2, clip_high=0.2, **counts
        )
        for weights in (found.weights_BT, None)
    )
    assert torch.equal(weighted.loss, plain.loss)


VOCABULARY, LENGTH, END = 3, 3, 0
Answer = tuple[int, ...]


def all_answers() -> Iterator[Answer]:
    """Every answer: it ends with its first `END`, or is cut at `LENGTH`."""
    for length in range(1, LENGTH + 1):
        for tokens in itertools.product(range(VOCABULARY), repeat=length):
            inner_ends = END in tokens[:-1]
            if not inner_ends and (tokens[-1] == END or length == LENGTH):
                yield tokens


def states() -> dict[Answer, int]:
    """The texts after which a token is drawn, numbered."""
    found = {prefix[:t] for prefix in all_answers() for t in range(len(prefix))}
    return {state: number for number, state in enumerate(sorted(found))}


def reward(answer: Answer) -> float:
    return math.sin(sum((place + 1.7) * (token + 1) for place, token in enumerate(answer)))


def policies() -> tuple[Tensor, Tensor]:
    """Logits [states, tokens] of the trainer's policy, and of one that is rounded coarsely."""
    generator = torch.Generator().manual_seed(11)
    shape = (len(states()), VOCABULARY)
    logits = 1.5 * torch.randn(shape, dtype=torch.float64, generator=generator)
    return logits, (2 * logits).round() / 2 + 0.1


def per_token(logits: Tensor) -> Tensor:
    """Log-probs [answers, 1 + LENGTH] of all answers; entry 0 is a prompt's."""
    numbers, logprobs = states(), logits.log_softmax(-1)
    rows = []
    for answer in all_answers():
        row = [logprobs[numbers[answer[:t]], token] for t, token in enumerate(answer)]
        rows.append(torch.stack([logprobs.new_zeros(()), *row, *[logprobs.new_zeros(())] * 3][:4]))
    return torch.stack(rows)


def expected_gradient(
    trainer: Tensor, drawn_by: Tensor, level: ImportanceLevel | None, values: Tensor
) -> Tensor:
    """The gradient of our loss for every answer, times the chance that it is drawn; summed."""
    answers = list(all_answers())
    live = trainer.clone().requires_grad_()
    mask = torch.zeros(len(answers), 1 + LENGTH, dtype=torch.bool)
    for row, answer in enumerate(answers):
        mask[row, 1 : 1 + len(answer)] = True
    logprobs, behaviour = per_token(live), per_token(drawn_by)
    chances = (behaviour * mask).sum(1).exp()
    assert chances.sum().item() == pytest.approx(1, abs=1e-12)
    weights = torch.ones_like(behaviour)
    if level is not None:
        weights = importance_weights(
            logprobs.detach(), behaviour, mask, Importance(level)
        ).weights_BT
    loss = clipped_policy_loss(
        logprobs,
        logprobs.detach(),
        values,
        mask,
        weights_BT=weights * chances[:, None],
        clip_low=0.2,
        clip_high=0.2,
        aggregation="sequence_sum",
        num_tokens=int(mask.sum()),
        num_sequences=1,
        max_tokens=LENGTH,
    ).loss
    loss.backward()
    assert live.grad is not None
    return live.grad


def rewards_per_token() -> Tensor:
    return torch.tensor(
        [[reward(answer)] * (1 + LENGTH) for answer in all_answers()], dtype=torch.float64
    )


def test_whole_answers_weighed_give_the_gradient_of_the_trainers_own_policy() -> None:
    """All answers, exactly: sum of q(y) w(y) gradient(y) = sum of p(y) gradient(y)."""
    trainer, behaviour = policies()
    rewards = rewards_per_token()
    on_policy = expected_gradient(trainer, trainer, None, rewards)
    live = trainer.clone().requires_grad_()
    chances = torch.stack(
        [row[1 : 1 + len(a)].sum() for row, a in zip(per_token(live), all_answers(), strict=True)]
    ).exp()
    (-(chances * rewards[:, 0]).sum()).backward()  # of the expected reward itself
    assert live.grad is not None
    torch.testing.assert_close(on_policy, live.grad, rtol=1e-12, atol=1e-14)
    corrected = expected_gradient(trainer, behaviour, "sequence", rewards)
    torch.testing.assert_close(corrected, on_policy, rtol=1e-12, atol=1e-14)
    uncorrected = expected_gradient(trainer, behaviour, None, rewards)
    assert (uncorrected - on_policy).norm() > 0.05 * on_policy.norm()


def test_tokens_weighed_give_the_gradient_of_the_trainers_actions_in_the_states_drawn() -> None:
    """Exact in each state: only how often a state comes, and what follows, are the engine's.

    With the values of the engine's own continuations the expectation is the sum over states of
    q(state) * gradient of sum_a p(a | state) Q(state, a).
    """
    trainer, behaviour = policies()
    answers, numbers = list(all_answers()), states()
    chance = (per_token(behaviour)).sum(1).exp()
    live = trainer.clone().requires_grad_()
    probabilities = live.softmax(-1)
    wanted = torch.zeros((), dtype=torch.float64)
    values = torch.zeros(len(answers), 1 + LENGTH, dtype=torch.float64)
    for state, number in numbers.items():
        t = len(state)
        beyond = [n for n, answer in enumerate(answers) if answer[:t] == state and len(answer) > t]
        for token in range(VOCABULARY):
            here = [n for n in beyond if answers[n][t] == token]
            weight = sum(chance[n] for n in here)
            value = sum(chance[n] * reward(answers[n]) for n in here) / weight
            values[here, 1 + t] = value
            visits = sum(chance[n] for n in beyond)
            wanted = wanted - visits * probabilities[number, token] * value
    wanted.backward()
    assert live.grad is not None
    found = expected_gradient(trainer, behaviour, "token", values)
    torch.testing.assert_close(found, live.grad, rtol=1e-11, atol=1e-13)


def test_tokens_weighed_come_nearer_to_the_trainers_own_gradient_than_without() -> None:
    trainer, behaviour = policies()
    rewards = rewards_per_token()
    on_policy = expected_gradient(trainer, trainer, None, rewards)
    plain, weighed = (
        (expected_gradient(trainer, behaviour, level, rewards) - on_policy).norm()
        for level in (None, "token")
    )
    assert weighed < 0.6 * plain


def test_no_weight_is_above_its_bound_in_float32() -> None:
    old, behaviour = torch.tensor([[0.0, -1.0, -1.0]]), torch.tensor([[0.0, -500.0, -900.0]])
    mask = torch.tensor([[False, True, True]])
    for level in LEVELS:
        found = importance_weights(old, behaviour, mask, Importance(level))
        assert found.weights_BT.isfinite().all()
        assert found.approx_kl_sum.isfinite()


def test_what_does_not_fit_is_refused() -> None:
    _, old, behaviour, _ = batch()
    with pytest.raises(ShapeError):
        importance_weights(old, behaviour[:, :-1], MASK, Importance("token"))
    with pytest.raises(ConfigError, match=r"capped at 0\.0"):
        importance_weights(old, behaviour, MASK, Importance("token", 0.0))
