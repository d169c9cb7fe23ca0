"""Losses on pairs beside a reference: a scalar loop from the papers, and TRL 1.16 line by line."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from flexrlhf.core.errors import ConfigError, ShapeError
from flexrlhf.core.names import PreferenceLossName
from flexrlhf.learning.algorithms.direct_preference import (
    AnswerLogprobs,
    direct_preference_loss,
)
from flexrlhf.learning.algorithms.preference import pairwise_reward_loss

NUM_PAIRS = 6
KINDS: tuple[PreferenceLossName, ...] = get_args(PreferenceLossName)
every_kind = pytest.mark.parametrize("kind", KINDS)


def pairs() -> tuple[AnswerLogprobs, AnswerLogprobs]:
    generator = torch.Generator().manual_seed(4)

    def one() -> AnswerLogprobs:
        policy, noise = torch.randn(2, NUM_PAIRS, dtype=torch.float64, generator=generator)
        lengths = torch.randint(1, 9, (NUM_PAIRS,), generator=generator)
        return AnswerLogprobs(4 * policy - 20, 4 * policy + 2 * noise - 20, lengths)

    return one(), one()


def part(answer: AnswerLogprobs, rows: list[int]) -> AnswerLogprobs:
    return AnswerLogprobs(
        answer.policy_B[rows], answer.reference_B[rows], answer.num_tokens_B[rows]
    )


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def pair_loss(kind: str, beta: float, e: float, *, c: float, r: float, tokens: tuple) -> float:
    """One pair by the papers' formulas: c and r are log pi/pi_ref of chosen and rejected."""
    preferred = sigmoid(beta * (c - r))  # Bradley-Terry on the implicit rewards
    match kind:
        case "sigmoid":
            return -(1 - e) * math.log(preferred) - e * math.log(1 - preferred)
        case "robust":
            clean, flipped = -math.log(preferred), -math.log(1 - preferred)
            return ((1 - e) * clean - e * flipped) / (1 - 2 * e)
        case "sigmoid_norm":
            return -math.log(sigmoid(beta * (c / tokens[0] - r / tokens[1])))
        case "hinge":
            return max(0.0, 1 - beta * (c - r))
    return (c / tokens[0] - r / tokens[1] - 1 / (2 * beta)) ** 2


@every_kind
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_equals_the_loop(kind, beta, smoothing):
    chosen, rejected = pairs()
    total, correct, rewards = 0.0, 0, [0.0, 0.0]
    for i in range(NUM_PAIRS):
        c, r = (float(a.policy_B[i]) - float(a.reference_B[i]) for a in (chosen, rejected))
        tokens = (int(chosen.num_tokens_B[i]), int(rejected.num_tokens_B[i]))
        total += pair_loss(kind, beta, smoothing, c=c, r=r, tokens=tokens)
        correct += c > r
        rewards[0] += beta * c
        rewards[1] += beta * r
    found = direct_preference_loss(
        chosen, rejected, kind=kind, beta=beta, label_smoothing=smoothing, num_pairs=NUM_PAIRS
    )
    assert found.loss.item() == pytest.approx(total / NUM_PAIRS, rel=1e-12)
    assert int(found.num_correct) == correct
    assert found.chosen_reward_sum.item() == pytest.approx(rewards[0], rel=1e-12)
    assert found.rejected_reward_sum.item() == pytest.approx(rewards[1], rel=1e-12)


def trl_loss(kind: str, chosen: AnswerLogprobs, rejected: AnswerLogprobs, beta: float, e: float):
    """The branches of `DPOTrainer._compute_loss` of TRL 1.16, with its expressions."""
    chosen_scores = chosen.policy_B - chosen.reference_B
    rejected_scores = rejected.policy_B - rejected.reference_B
    delta_score = chosen_scores - rejected_scores
    averages = [
        scores / tokens.clamp(min=1.0)
        for scores, tokens in (
            (chosen_scores, chosen.num_tokens_B),
            (rejected_scores, rejected.num_tokens_B),
        )
    ]
    per_sequence: dict[str, Tensor] = {
        "sigmoid": -functional.logsigmoid(beta * delta_score),
        "hinge": torch.relu(1 - beta * delta_score),
        "ipo": (averages[0] - averages[1] - 1 / (2 * beta)) ** 2,
        "robust": (
            -(1 - e) * functional.logsigmoid(beta * delta_score)
            + e * functional.logsigmoid(-beta * delta_score)
        )
        / (1 - 2 * e),
        "sigmoid_norm": -functional.logsigmoid(beta * (averages[0] - averages[1])),
    }
    return per_sequence[kind].mean()


@every_kind
def test_equals_trl(kind):
    chosen, rejected = pairs()
    smoothing = 0.2 if kind == "robust" else 0.0
    found = direct_preference_loss(
        chosen, rejected, kind=kind, beta=0.3, label_smoothing=smoothing, num_pairs=NUM_PAIRS
    )
    expected = trl_loss(kind, chosen, rejected, 0.3, smoothing)
    torch.testing.assert_close(found.loss, expected, rtol=1e-13, atol=0)


def test_hand_worked():
    # Log-ratios 2 and -1, beta 0.5: margin 1.5, -ln sigmoid(1.5) = 0.2014133; rewards 1 and -0.5.
    tokens = torch.tensor([4])
    chosen = AnswerLogprobs(torch.tensor([-3.0]), torch.tensor([-5.0]), tokens)
    rejected = AnswerLogprobs(torch.tensor([-7.0]), torch.tensor([-6.0]), tokens)
    found = direct_preference_loss(chosen, rejected, beta=0.5, num_pairs=1)
    assert found.loss.item() == pytest.approx(0.2014133, abs=1e-7)
    assert (found.chosen_reward_sum.item(), found.rejected_reward_sum.item()) == (1.0, -0.5)
    # The means over four tokens are 1/2 and -1/4, a quarter from 1 / (2 beta) = 1.
    ipo = direct_preference_loss(chosen, rejected, kind="ipo", beta=0.5, num_pairs=1)
    assert ipo.loss.item() == pytest.approx(0.0625)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_a_policy_that_is_the_reference_guesses(smoothing):
    chosen, rejected = (
        AnswerLogprobs(a.policy_B, a.policy_B.clone(), a.num_tokens_B) for a in pairs()
    )
    for kind in ("sigmoid", "robust"):
        found = direct_preference_loss(
            chosen, rejected, kind=kind, beta=0.1, label_smoothing=smoothing, num_pairs=NUM_PAIRS
        )
        assert found.loss.item() == pytest.approx(math.log(2), rel=1e-14)
        assert int(found.num_correct) == 0  # a tie is not right
        assert found.chosen_reward_sum.item() == 0


def test_without_smoothing_it_is_the_loss_of_a_reward_model_on_implicit_rewards():
    chosen, rejected = pairs()
    better, worse = (0.3 * (a.policy_B - a.reference_B) for a in (chosen, rejected))
    expected = pairwise_reward_loss(better, worse, num_pairs=NUM_PAIRS)
    found = direct_preference_loss(chosen, rejected, beta=0.3, num_pairs=NUM_PAIRS)
    assert found.loss == expected.loss
    assert found.num_correct == expected.num_correct


@every_kind
def test_gradient(kind):
    chosen, rejected = pairs()

    def loss(policy_chosen: Tensor, policy_rejected: Tensor) -> Tensor:
        answers = (
            AnswerLogprobs(policy, a.reference_B, a.num_tokens_B)
            for policy, a in ((policy_chosen, chosen), (policy_rejected, rejected))
        )
        smoothing = 0.1 if kind in ("sigmoid", "robust") else 0.0
        return direct_preference_loss(
            *answers, kind=kind, beta=0.4, label_smoothing=smoothing, num_pairs=NUM_PAIRS
        ).loss

    inputs = (chosen.policy_B.requires_grad_(), rejected.policy_B.requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs)


@every_kind
def test_trap_3_a_cut_batch_gives_the_loss_of_the_whole(kind):
    chosen, rejected = pairs()
    keys = {"kind": kind, "beta": 0.2, "num_pairs": NUM_PAIRS}
    whole = direct_preference_loss(chosen, rejected, **keys)
    parts = [
        direct_preference_loss(part(chosen, rows), part(rejected, rows), **keys)
        for rows in ([5, 0, 2], [4], [1, 3])
    ]
    for name in ("loss", "num_correct", "chosen_reward_sum", "rejected_reward_sum"):
        total = sum(getattr(one, name) for one in parts)
        assert float(total) == pytest.approx(float(getattr(whole, name)), rel=1e-13)


def test_far_apart_answers_stay_finite():
    for sign in (1, -1):
        chosen = AnswerLogprobs(
            torch.tensor([sign * 1e5]).requires_grad_(), torch.zeros(1), torch.ones(1)
        )
        rejected = AnswerLogprobs(torch.zeros(1), torch.zeros(1), torch.ones(1))
        found = direct_preference_loss(chosen, rejected, beta=0.1, label_smoothing=0.1, num_pairs=1)
        found.loss.backward()
        assert math.isfinite(found.loss.item())
        assert math.isfinite(chosen.policy_B.grad.item())


def test_bad_arguments_are_refused():
    chosen, rejected = pairs()
    with pytest.raises(ShapeError):
        direct_preference_loss(chosen, part(rejected, [0]), beta=0.1, num_pairs=NUM_PAIRS)
    for beta in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="beta"):
            direct_preference_loss(chosen, rejected, beta=beta, num_pairs=NUM_PAIRS)
    for smoothing in (-0.1, 0.5):
        with pytest.raises(ConfigError, match="label_smoothing"):
            direct_preference_loss(
                chosen, rejected, beta=0.1, label_smoothing=smoothing, num_pairs=NUM_PAIRS
            )
