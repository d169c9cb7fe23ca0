"""KL estimators against enumeration, and the controllers against a run by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch

from flexrlhf.core.errors import ConfigError, RunFailed, ShapeError
from flexrlhf.learning.algorithms.kl import AdaptiveKL, FixedKL, kl_estimate, kl_loss

ESTIMATORS = ("k1", "k2", "k3")
MODES = ("token_mean", "sequence_mean", "sequence_sum", "token_sum_norm")


def scalar_kl(logprob: float, reference: float, estimator: str) -> float:
    """Schulman's estimators of KL(policy || reference) from one token of the policy."""
    ratio = math.exp(reference - logprob)
    return {
        "k1": logprob - reference,
        "k2": 0.5 * (logprob - reference) ** 2,
        "k3": ratio - 1 - math.log(ratio),
    }[estimator]


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    logprobs = -3 * torch.rand(4, 6, dtype=torch.float64, generator=generator)
    reference = logprobs + torch.randn(4, 6, dtype=torch.float64, generator=generator)
    mask = torch.tensor(
        [[0, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]],
        dtype=torch.bool,
    )
    return logprobs, reference, mask


def counts(mask: torch.Tensor) -> dict[str, int]:
    return {"num_tokens": int(mask.sum()), "num_sequences": len(mask), "max_tokens": 8}


def loop_kl_loss(
    logprobs: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, estimator: str, mode: str
) -> float:
    total = 0.0
    for row in range(len(mask)):
        terms = [
            scalar_kl(logprobs[row, t].item(), reference[row, t].item(), estimator)
            for t in range(mask.shape[1])
            if mask[row, t]
        ]
        total += sum(terms) / len(terms) if mode == "sequence_mean" else sum(terms)
    if mode == "token_mean":
        return total / int(mask.sum())
    return total / (len(mask) * (8 if mode == "token_sum_norm" else 1))


# ---------------------------------------------------------------------------------- kl_estimate


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimate_equals_the_loop(estimator: str) -> None:
    logprobs, reference, _ = batch()
    expected = torch.tensor(
        [
            [scalar_kl(a, b, estimator) for a, b in zip(row, other, strict=True)]
            for row, other in zip(logprobs.tolist(), reference.tolist(), strict=True)
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(kl_estimate(logprobs, reference, estimator), expected)


def test_estimate_hand_worked() -> None:
    # p = 1/2 under the policy, 1/4 under the reference: log-ratio ln 2.
    # k1 = ln 2; k2 = (ln 2)^2 / 2; k3 = (1/4)/(1/2) - 1 + ln 2 = ln 2 - 1/2.
    logprobs, reference = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    expected = {"k1": 0.6931472, "k2": 0.2402265, "k3": 0.1931472}
    for estimator, value in expected.items():
        assert kl_estimate(logprobs, reference, estimator).item() == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_estimate_is_unbiased_by_enumeration(estimator: str) -> None:
    policy = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    reference = torch.tensor([0.4, 0.1, 0.25, 0.25], dtype=torch.float64)
    true_kl = sum(p * math.log(p / q) for p, q in zip(policy, reference, strict=True))
    mean = (policy * kl_estimate(policy.log(), reference.log(), estimator)).sum()
    assert mean.item() == pytest.approx(float(true_kl), abs=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimate_gradient(estimator: str) -> None:
    logprobs, reference, _ = batch()
    assert torch.autograd.gradcheck(
        lambda x: kl_estimate(x, reference, estimator), logprobs.requires_grad_()
    )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimate_is_zero_when_policies_agree(estimator: str) -> None:
    logprobs, _, _ = batch()
    assert torch.all(kl_estimate(logprobs, logprobs, estimator) == 0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("gap", [-1e4, 1e4])
def test_estimate_of_hopeless_tokens_stays_finite(estimator: str, gap: float) -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    estimate = kl_estimate(logprobs, torch.tensor([-1.0 + gap]), estimator).sum()
    estimate.backward()
    assert math.isfinite(estimate.item())
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()


# ------------------------------------------------------------------------------- kl_loss, trap 4


def gradient_by_enumeration(
    loss_of_logprobs: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Exact expected gradient in the logits of a policy with p = 1/10, 2/10, 3/10, 4/10.

    Token x is drawn x + 1 times in ten, so ten tokens with these counts are the distribution.
    """
    logits = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).log().requires_grad_()
    drawn = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3, 3, 3])
    loss = loss_of_logprobs(logits.log_softmax(-1)[drawn][None])
    return torch.autograd.grad(loss, logits)[0]


REFERENCE = torch.tensor([0.4, 0.1, 0.25, 0.25], dtype=torch.float64)
DRAWN_REFERENCE = REFERENCE.log()[torch.tensor([0, 1, 1, 2, 2, 2, 3, 3, 3, 3])][None]
ALL_DRAWN = torch.ones(1, 10, dtype=torch.bool)


def true_gradient(*, reverse: bool) -> torch.Tensor:
    logits = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).log().requires_grad_()
    policy = logits.softmax(-1)
    first, second = (policy, REFERENCE) if reverse else (REFERENCE, policy)
    return torch.autograd.grad((first * (first / second).log()).sum(), logits)[0]


def test_trap_4_k1_has_no_expected_gradient() -> None:
    gradient = gradient_by_enumeration(
        lambda logprobs: kl_estimate(logprobs, DRAWN_REFERENCE, "k1").sum() / 10
    )
    torch.testing.assert_close(gradient, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-15)
    assert true_gradient(reverse=True).abs().max() > 0.05


def test_trap_4_k1_as_loss_is_refused_with_the_reason() -> None:
    logprobs, reference, mask = batch()
    with pytest.raises(ConfigError, match=r"gradient") as caught:
        kl_loss(logprobs, reference, mask, estimator="k1", **counts(mask))
    assert "k1" in caught.value.wrong
    assert "k2" in caught.value.right + caught.value.do


@pytest.mark.parametrize(("estimator", "reverse"), [("k2", True), ("k3", False)])
def test_trap_4_k2_gives_the_reverse_and_k3_the_forward_kl_gradient(
    estimator: str, reverse: bool
) -> None:
    gradient = gradient_by_enumeration(
        lambda logprobs: kl_loss(
            logprobs,
            DRAWN_REFERENCE,
            ALL_DRAWN,
            estimator=estimator,
            num_tokens=10,
            num_sequences=1,
            max_tokens=10,
        )
    )
    torch.testing.assert_close(gradient, true_gradient(reverse=reverse), rtol=0, atol=1e-14)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("mode", MODES)
def test_loss_equals_the_loop(estimator: str, mode: str) -> None:
    logprobs, reference, mask = batch()
    loss = kl_loss(logprobs, reference, mask, estimator=estimator, aggregation=mode, **counts(mask))
    expected = loop_kl_loss(logprobs, reference, mask, estimator, mode)
    assert loss.item() == pytest.approx(expected, abs=1e-13)


def test_loss_is_a_token_mean_unless_told() -> None:
    logprobs, reference, mask = batch()
    loss = kl_loss(logprobs, reference, mask, estimator="k2", **counts(mask))
    expected = loop_kl_loss(logprobs, reference, mask, "k2", "token_mean")
    assert loss.item() == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_loss_gradient(estimator: str) -> None:
    logprobs, reference, mask = batch()
    assert torch.autograd.gradcheck(
        lambda x: kl_loss(x, reference, mask, estimator=estimator, **counts(mask)),
        logprobs.requires_grad_(),
    )


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("garbage", [-1e4, math.nan])
def test_trap_1_padding_row_order_and_split_change_nothing(
    estimator: str, mode: str, garbage: float
) -> None:
    logprobs, reference, mask = batch()
    common = {"estimator": estimator, "aggregation": mode, **counts(mask)}
    whole_leaf = logprobs.clone().requires_grad_()
    whole = kl_loss(whole_leaf, reference, mask, **common)
    whole.backward()

    leaf = torch.nn.functional.pad(logprobs, (0, 3), value=garbage).requires_grad_()
    padded_reference = torch.nn.functional.pad(reference, (0, 3), value=1e4)
    padded_mask = torch.nn.functional.pad(mask, (0, 3), value=False)
    total = 0.0
    for rows in ([3, 0], [2], [1]):
        shard = kl_loss(leaf[rows], padded_reference[rows], padded_mask[rows], **common)
        shard.backward()
        total += shard.item()
    assert total == pytest.approx(whole.item(), abs=1e-14)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad[:, :6], whole_leaf.grad, rtol=0, atol=1e-15)
    assert torch.all(leaf.grad[:, 6:] == 0)


def test_bad_requests_are_refused() -> None:
    logprobs, reference, mask = batch()
    with pytest.raises(ConfigError, match="k9"):
        kl_estimate(logprobs, reference, "k9")
    with pytest.raises(ShapeError):
        kl_loss(logprobs, reference[:-1], mask, estimator="k2", **counts(mask))


# ---------------------------------------------------------------------------------- controllers


def test_fixed_coefficient_stays() -> None:
    controller = FixedKL(0.05)
    controller.update(measured_kl=100.0, num_samples=512)
    assert controller.coefficient == 0.05


def test_adaptive_follows_ziegler_by_hand() -> None:
    # Ziegler et al. 2019, section 2.2: error = clip(kl / target - 1, -0.2, 0.2), and the
    # coefficient is multiplied by 1 + error * n / horizon. Target 6, horizon 1000:
    #   kl 6.6, n 100: error 0.1         -> 0.2      * (1 + 0.1  * 0.1) = 0.202
    #   kl 60,  n 50 : error 9, cut 0.2  -> 0.202    * (1 + 0.2  * 0.05) = 0.20402
    #   kl 0,   n 100: error -1, cut     -> 0.20402  * (1 - 0.2  * 0.1) = 0.1999396
    #   kl 5.7, n 400: error -0.05       -> 0.1999396 * (1 - 0.05 * 0.4) = 0.195940808
    controller = AdaptiveKL(coefficient=0.2, target=6.0, horizon=1000)
    seen = []
    for measured_kl, num_samples in ((6.6, 100), (60.0, 50), (0.0, 100), (5.7, 400)):
        controller.update(measured_kl=measured_kl, num_samples=num_samples)
        seen.append(controller.coefficient)
    assert seen == pytest.approx([0.202, 0.20402, 0.1999396, 0.195940808], rel=1e-12)


def test_adaptive_rests_on_target() -> None:
    controller = AdaptiveKL(coefficient=0.1, target=3.0, horizon=500)
    controller.update(measured_kl=3.0, num_samples=64)
    assert controller.coefficient == pytest.approx(0.1, rel=1e-15)


def test_restored_controller_goes_on_as_the_unbroken_one() -> None:
    measured = [2.0, 9.0, 5.5, 7.1, 0.3]
    unbroken = AdaptiveKL(coefficient=0.2, target=6.0, horizon=1000)
    for measured_kl in measured:
        unbroken.update(measured_kl=measured_kl, num_samples=32)

    killed = AdaptiveKL(coefficient=0.2, target=6.0, horizon=1000)
    for measured_kl in measured[:2]:
        killed.update(measured_kl=measured_kl, num_samples=32)
    stored = json.loads(json.dumps(killed.state()))
    resumed = AdaptiveKL(coefficient=0.2, target=6.0, horizon=1000)
    resumed.restore(stored)
    for measured_kl in measured[2:]:
        resumed.update(measured_kl=measured_kl, num_samples=32)
    assert resumed.coefficient == unbroken.coefficient


def test_fixed_state_round_trip() -> None:
    first, second = FixedKL(0.05), FixedKL(0.05)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.coefficient == 0.05


@pytest.mark.parametrize("number", [-0.1, math.nan, math.inf])
def test_bad_coefficients_are_refused(number: float) -> None:
    with pytest.raises(ConfigError, match="coefficient"):
        FixedKL(number)
    with pytest.raises(ConfigError, match="coefficient"):
        AdaptiveKL(coefficient=number, target=6.0, horizon=1000)


@pytest.mark.parametrize("number", [0.0, -1.0, math.nan, math.inf])
def test_bad_targets_and_horizons_are_refused(number: float) -> None:
    with pytest.raises(ConfigError, match="target"):
        AdaptiveKL(coefficient=0.1, target=number, horizon=1000)
    with pytest.raises(ConfigError, match="horizon"):
        AdaptiveKL(coefficient=0.1, target=6.0, horizon=number)


def test_iteration_too_large_for_the_horizon_is_refused_and_changes_nothing() -> None:
    # 5 * horizon samples at error -0.2 would multiply the coefficient by 0, more by less than 0.
    controller = AdaptiveKL(coefficient=0.1, target=6.0, horizon=100)
    with pytest.raises(ConfigError, match="horizon"):
        controller.update(measured_kl=0.0, num_samples=500)
    assert controller.coefficient == 0.1


@pytest.mark.parametrize("measured_kl", [math.nan, math.inf])
def test_measurement_that_is_not_finite_ends_the_run(measured_kl: float) -> None:
    controller = AdaptiveKL(coefficient=0.1, target=6.0, horizon=1000)
    with pytest.raises(RunFailed, match="KL"):
        controller.update(measured_kl=measured_kl, num_samples=8)
    assert controller.coefficient == 0.1


def test_reference_is_a_constant_of_the_loss() -> None:
    logprobs, reference, mask = batch()
    reference.requires_grad_()
    loss = kl_loss(logprobs.requires_grad_(), reference, mask, estimator="k3", **counts(mask))
    loss.backward()
    assert reference.grad is None
