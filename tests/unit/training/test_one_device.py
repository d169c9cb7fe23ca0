"""Steps of the one-device backend against AdamW written out, and against PyTorch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from flexrlhf.core.errors import RunFailed
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.optimizer import OptimizerSettings

SETTINGS = OptimizerSettings(
    learning_rate=0.02,
    total_steps=6,
    schedule="cosine",
    warmup_steps=2,
    weight_decay=0.1,
    betas=(0.8, 0.9),
    epsilon=1e-6,
    max_grad_norm=1.0,
)


def network(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).to(dtype)


def gradients(model: nn.Module, step: int, size: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [
        size * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
        for p in model.parameters()
    ]


def loss_with(model: nn.Module, wanted: list[Tensor]) -> Tensor:
    """Returns a loss whose gradient is `wanted`."""
    terms = [(p * g).sum() for p, g in zip(model.parameters(), wanted, strict=True)]
    return torch.stack(terms).sum()


def rate(step: int) -> float:
    """Two steps of warm-up to 0.02, then half a cosine over four steps."""
    return 0.01 * (step + 1) if step < 2 else 0.01 * (1 + math.cos(math.pi * (step - 2) / 4))


def adamw_by_hand(
    weights: list[list[float]], decays: list[bool], gradients_of_steps: list[list[list[float]]]
) -> list[float]:
    """Updates `weights` in place, number by number, and returns each step's gradient norm."""
    beta1, beta2 = 0.8, 0.9
    first = [[0.0] * len(row) for row in weights]
    second = [[0.0] * len(row) for row in weights]
    norms = []
    for step, rows in enumerate(gradients_of_steps):
        norms.append(math.sqrt(math.fsum(g * g for row in rows for g in row)))
        scale = min(1.0, 1.0 / (norms[-1] + 1e-6))  # PyTorch's clipping adds 1e-6 to the norm
        for i, row in enumerate(rows):
            for j, unclipped in enumerate(row):
                g = scale * unclipped
                first[i][j] = beta1 * first[i][j] + (1 - beta1) * g
                second[i][j] = beta2 * second[i][j] + (1 - beta2) * g * g
                mean = first[i][j] / (1 - beta1 ** (step + 1))
                root = math.sqrt(second[i][j] / (1 - beta2 ** (step + 1)))
                if decays[i]:
                    weights[i][j] *= 1 - rate(step) * 0.1
                weights[i][j] -= rate(step) * mean / (root + 1e-6)
    return norms


def test_six_steps_equal_adamw_with_clipping_and_schedule_by_hand():
    model = network()
    backend = OneDeviceBackend(model, SETTINGS)
    sizes = [0.05, 3.0, 0.1, 40.0, 0.2, 1.0]  # some below the limit of the norm, some above
    steps = [gradients(model, step, size) for step, size in enumerate(sizes)]
    by_hand = [p.detach().flatten().tolist() for p in model.parameters()]
    norms = adamw_by_hand(
        by_hand,
        [p.dim() >= 2 for p in model.parameters()],
        [[g.flatten().tolist() for g in step] for step in steps],
    )
    for number, wanted in enumerate(steps):
        backend.backward(loss_with(model, wanted))
        report = backend.step()
        assert report.learning_rate == pytest.approx(rate(number), rel=1e-12)
        assert report.grad_norm == pytest.approx(norms[number], rel=1e-12)
    ours = [p.detach().flatten().tolist() for p in model.parameters()]
    for row, expected in zip(ours, by_hand, strict=True):
        assert row == pytest.approx(expected, rel=1e-11, abs=1e-13)
    assert min(norms) < 1.0 < max(norms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_equal_pytorchs_unfused_adamw(dtype: torch.dtype):
    ours, theirs = network(dtype), network(dtype)
    backend = OneDeviceBackend(ours, SETTINGS)
    matrices = [p for p in theirs.parameters() if p.dim() >= 2]
    vectors = [p for p in theirs.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.8, 0.9),
        eps=1e-6,
        foreach=False,
        fused=False,
    )
    for step in range(6):
        wanted = gradients(ours, step, size=1.0)
        backend.backward(loss_with(ours, wanted))
        backend.step()
        for parameter, gradient in zip(theirs.parameters(), wanted, strict=True):
            parameter.grad = gradient.clone()
        nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)


def test_gradients_of_several_losses_add_up():
    once, twice = network(), network()
    wanted = gradients(once, 0, size=0.3)
    backend = OneDeviceBackend(once, SETTINGS)
    backend.backward(loss_with(once, wanted))
    together = backend.step()
    backend = OneDeviceBackend(twice, SETTINGS)
    for share in (0.25, 0.75):
        backend.backward(share * loss_with(twice, wanted))
    assert backend.step().grad_norm == pytest.approx(together.grad_norm, rel=1e-12)
    for p, q in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


def test_no_limit_of_the_norm_leaves_gradients_as_they_are():
    model = network()
    settings = OptimizerSettings(0.02, total_steps=1, max_grad_norm=None)
    backend = OneDeviceBackend(model, settings)
    wanted = gradients(model, 0, size=1e6)
    backend.backward(loss_with(model, wanted))
    expected = math.sqrt(sum(g.square().sum().item() for g in wanted))
    assert backend.step().grad_norm == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_stops_the_run_and_changes_nothing(spoilt: float):
    model = network()
    backend = OneDeviceBackend(model, SETTINGS)
    backend.backward(loss_with(model, gradients(model, 0, size=1.0)))
    backend.step()
    before = [p.detach().clone() for p in model.parameters()]
    wanted = gradients(model, 1, size=1.0)
    wanted[2][0] = spoilt
    backend.backward(loss_with(model, wanted))
    with pytest.raises(RunFailed, match=r"gradient norm is (nan|inf) at optimiser step 1"):
        backend.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert all(p.grad is None for p in model.parameters())
    backend.backward(loss_with(model, gradients(model, 1, size=1.0)))
    assert backend.step().learning_rate == pytest.approx(rate(1), rel=1e-12)


def test_discarded_gradients_do_not_reach_the_next_step():
    model, other = network(), network()
    backend, expected = (OneDeviceBackend(m, SETTINGS) for m in (model, other))
    backend.backward(loss_with(model, gradients(model, 7, size=5.0)))
    backend.discard_gradient()
    for trained, module in ((backend, model), (expected, other)):
        trained.backward(loss_with(module, gradients(module, 0, size=1.0)))
        trained.step()
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_bytes_of_weights_and_moments():
    # 3*4 + 4 + 4 + 4 + 4*2 + 2 = 34 numbers
    backend = OneDeviceBackend(network(torch.float32), SETTINGS)
    assert (backend.weight_bytes(), backend.optimizer_bytes()) == (34 * 4, 2 * 34 * 4)
    backend = OneDeviceBackend(network(torch.float64), SETTINGS)
    assert (backend.weight_bytes(), backend.optimizer_bytes()) == (34 * 8, 2 * 34 * 8)


def test_bfloat16_is_a_matter_of_the_forward_pass_alone():
    model = network(torch.float32)
    backend = OneDeviceBackend(model, SETTINGS, precision="bfloat16")
    with backend.autocast():
        output = model[0](torch.ones(1, 3))
    assert output.dtype == torch.bfloat16
    assert model[0](torch.ones(1, 3)).dtype == torch.float32
    backend.backward(output.float().sum())
    backend.step()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    with OneDeviceBackend(model, SETTINGS).autocast():
        assert model[0](torch.ones(1, 3)).dtype == torch.float32
