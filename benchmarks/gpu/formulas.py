"""What needs torch alone: formulas, sampling, the optimiser, bytes and weights on their way."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from agreement import Agreement, limits
from torch import Tensor, nn

from flexrlhf.learning.algorithms.advantages import gae, token_rewards
from flexrlhf.learning.algorithms.policy import clipped_policy_loss
from flexrlhf.learning.algorithms.token_logprobs import selected_logprobs
from flexrlhf.learning.algorithms.value import clipped_value_loss
from flexrlhf.learning.models.shards import whole_shards
from flexrlhf.learning.models.tensor_bytes import checksum
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.rollout.sampling import draw_tokens
from flexrlhf.learning.training.optimizer import OptimizerSettings, build_optimizer
from flexrlhf.learning.transport.parcel import Parcel, decode, encode
from flexrlhf.learning.weights.pulling import pull
from flexrlhf.learning.weights.store import WeightStore

_ROWS, _TOKENS, _WIDTH, _VOCABULARY = 6, 24, 64, 500
Measure = Callable[[torch.device, torch.dtype], dict[str, Tensor]]


def main() -> int:
    """Compares every formula in both types; returns 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    device, cpu = torch.device(parser.parse_args().device), torch.device("cpu")
    agreement = Agreement()
    measures: tuple[Measure, ...] = (_losses, _logprobs, _optimizer)
    for dtype in (torch.float64, torch.float32):
        name = str(dtype).removeprefix("torch.")
        for measure in measures:
            expected = measure(cpu, dtype)
            for what, found in measure(device, dtype).items():
                agreement.near(f"{what}, {name}", found, expected[what], limits(dtype))
        agreement.same(f"tokens drawn, {name}", _drawn(device, dtype), _drawn(cpu, dtype))
    _compare_bytes(agreement, device)
    _compare_weights(agreement, device)
    return int(agreement.failed)


def _random(*shape: int, seed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Returns numbers that are drawn on the CPU, for a GPU draws others from the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)


def _mask(device: torch.device) -> Tensor:
    lengths_B = torch.arange(_TOKENS, _TOKENS - _ROWS, -1, device=device)
    positions_T = torch.arange(_TOKENS, device=device)
    return (positions_T >= 4) & (positions_T < lengths_B[:, None])


def _losses(device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    mask_BT = _mask(device)

    def numbers(seed: int) -> Tensor:
        return _random(_ROWS, _TOKENS, seed=seed, device=device, dtype=dtype) * mask_BT

    scores_B = _random(_ROWS, seed=1, device=device, dtype=dtype)
    rewards_BT = token_rewards(scores_B, numbers(2), numbers(3), mask_BT, kl_coef=0.1)
    advantages_BT, returns_BT = gae(rewards_BT, numbers(4), mask_BT, gamma=0.99, gae_lambda=0.95)
    live_BT = (numbers(2) + 0.1 * numbers(5)).requires_grad_()
    sizes: dict[str, Any] = {"num_tokens": int(mask_BT.sum())}
    policy = clipped_policy_loss(
        live_BT,
        numbers(2),
        advantages_BT,
        mask_BT,
        clip_low=0.2,
        clip_high=0.2,
        num_sequences=_ROWS,
        max_tokens=_TOKENS,
        **sizes,
    )
    value = clipped_value_loss(live_BT, numbers(4), returns_BT, mask_BT, clip=0.2, **sizes)
    (gradient_BT,) = torch.autograd.grad(policy.loss + value.loss, live_BT)
    return {
        "advantages": advantages_BT,
        "returns": returns_BT,
        "policy loss": policy.loss,
        "value loss": value.loss,
        "gradient of both": gradient_BT,
    }


def _logprobs(device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    hidden_ND = _random(_ROWS * _TOKENS, _WIDTH, seed=6, device=device, dtype=dtype)
    head_VD = _random(_VOCABULARY, _WIDTH, seed=7, device=device, dtype=dtype)
    head_VD = (0.1 * head_VD).requires_grad_()
    targets_N = torch.arange(len(hidden_ND), device=device) * 7 % _VOCABULARY
    logprobs_N, entropy_N = selected_logprobs(
        hidden_ND, head_VD, targets_N, chunk_tokens=32, with_entropy=True
    )
    assert entropy_N is not None
    (gradient_VD,) = torch.autograd.grad((logprobs_N + entropy_N).sum(), head_VD)
    return {"log-probs": logprobs_N, "entropy": entropy_N, "gradient of the head": gradient_VD}


def _optimizer(device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Returns weights after five steps of AdamW on a quadratic loss."""
    weights = [
        nn.Parameter(_random(*shape, seed=8, device=device, dtype=dtype))
        for shape in ((_WIDTH, _WIDTH), (_WIDTH,))
    ]
    settings = OptimizerSettings(learning_rate=0.01, total_steps=5, weight_decay=0.1)
    optimizer = build_optimizer(weights, settings)
    for _ in range(5):
        torch.stack([weight.square().sum() for weight in weights]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"matrix after 5 steps": weights[0], "vector after 5 steps": weights[1]}


def _drawn(device: torch.device, dtype: torch.dtype) -> list[list[int]]:
    """Returns tokens drawn greedily and by filters, from one uniform number each."""
    logits_BV = _random(64, _VOCABULARY, seed=9, device=device, dtype=dtype)
    uniforms_B = (torch.arange(64, dtype=torch.float64, device=device) + 0.5) / 64
    ways = (
        Sampling(max_new_tokens=1, greedy=True),
        Sampling(max_new_tokens=1, temperature=0.7),
        Sampling(max_new_tokens=1, top_k=20, top_p=0.9),
    )
    first_B = torch.zeros(64, dtype=torch.int64)
    drawn = [draw_tokens(logits_BV, uniforms_B, way, positions_B=first_B) for way in ways]
    return [each.tokens.cpu().tolist() for each in drawn]


def _compare_bytes(agreement: Agreement, device: torch.device) -> None:
    cpu = torch.device("cpu")
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        here = _random(37, 11, seed=10, device=cpu, dtype=dtype)
        there = here.to(device)
        agreement.same(f"checksum, {dtype}", checksum(there), checksum(here))
        sent = bytearray(b"".join(encode(Parcel({}, {"numbers": there}))))
        agreement.same(f"parcel, {dtype}", bool(torch.equal(_received(sent), here)), expected=True)


def _received(sent: bytearray) -> Tensor:
    left = memoryview(sent)

    def fill(memory: memoryview) -> None:
        nonlocal left
        memory[:] = left[: len(memory)]
        left = left[len(memory) :]

    return decode(fill).tensors["numbers"]


def _compare_weights(agreement: Agreement, device: torch.device) -> None:
    """Published on the device, pulled after they were written there, installed on both."""
    trained = nn.Linear(_WIDTH, _VOCABULARY).to(device)
    expected = trained.weight.detach().clone().cpu()
    store = WeightStore()
    store.publish("actor", 1, whole_shards(trained))
    store.protect("actor")
    with torch.no_grad():
        trained.weight.zero_()
    for place in (device, torch.device("cpu")):
        copy = nn.Linear(_WIDTH, _VOCABULARY).to(place)
        staged = pull(
            "actor", 1, whole_shards(copy), ["here"], lambda _, key, query: store.handle(key, query)
        )
        receipt = staged.install()
        what = f"weights pulled onto {place}"
        agreement.same(what, bool(torch.equal(copy.weight.detach().cpu(), expected)), expected=True)
        agreement.same(f"{what}, checksums", receipt.installed_checksum, receipt.source_checksum)


if __name__ == "__main__":
    sys.exit(main())
