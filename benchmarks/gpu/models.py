"""What needs transformers: passes, generation and training of small random models."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import Any, Final

import torch
from agreement import Agreement
from torch import Tensor, nn

from flexrlhf.learning.data.experience import Batch, Prompt, Sample, collate
from flexrlhf.learning.models.forward import sequence_scores, token_logprobs, token_values
from flexrlhf.learning.models.loading import load_policy, load_scorer
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.protocol import Generation, Request, Sampling
from flexrlhf.learning.training.memory import peak_bytes, reset_peak
from flexrlhf.learning.training.objectives import GlobalCounts, PolicyObjective
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.optimizer import OptimizerSettings
from flexrlhf.learning.training.step import RoleTrainer

_FAMILIES: Final = ("llama", "qwen2")
_SHAPE: Final = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}
_SAMPLING: Final = Sampling(max_new_tokens=24, end_tokens=(1,), seed=3)
_DTYPES: Final = ("float64", "float32")
_LIMIT: Final = 1e-4
"""Of log-probs and values, in both types: norms and rotations of transformers are float32 anyway.
Float32 and float64 on one CPU are 7e-7 apart."""
_TRAINED: Final = 1e-2
"""Of what steps changed: AdamW divides a gradient by its own size, so small ones round most. On one
CPU the two types are 3e-4 apart."""
_STEPS: Final = 3


def main() -> int:
    """Compares both families in both types and times bfloat16; returns 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    device = torch.device(parser.parse_args().device)
    agreement = Agreement()
    for family in _FAMILIES:
        for dtype in _DTYPES:
            _compare(agreement, family, dtype, device)
    for precision in ("float32", "bfloat16"):
        _time(_on(device, _policy("llama", "float32")), precision)
    return int(agreement.failed)


def _compare(agreement: Agreement, family: str, dtype: str, device: torch.device) -> None:
    name, limit = f"{family}, {dtype}", _LIMIT
    here, there = _policy(family, dtype), _on(device, _policy(family, dtype))
    answers = _answers(here, "native")
    for engine in ("native", "transformers"):
        found = _answers(there, engine)
        tokens = [answer.tokens for answer in answers]
        agreement.same(f"tokens, {name}, {engine}", [one.tokens for one in found], tokens)
    greedy = replace(_SAMPLING, greedy=True)
    agreement.same(
        f"greedy tokens, {name}",
        [one.tokens for one in _answers(there, "native", greedy)],
        [one.tokens for one in _answers(here, "native", greedy)],
    )
    batch = collate(_samples(answers))
    with torch.no_grad():
        expected = token_logprobs(here, batch, with_entropy=True)
        found_out = token_logprobs(there, batch.to(device), with_entropy=True)
    agreement.near(f"log-probs, {name}", found_out.logprobs, expected.logprobs, limit)
    assert found_out.entropy is not None
    assert expected.entropy is not None
    agreement.near(f"entropy, {name}", found_out.entropy, expected.entropy, limit)
    engine_logprobs = _engine_logprobs(_answers(there, "native"), batch)
    agreement.near(f"engine's log-probs, {name}", engine_logprobs, found_out.logprobs, limit)
    scorer: nn.Module = load_scorer(_source(family, dtype))
    with torch.no_grad():
        values, scores = token_values(scorer, batch), sequence_scores(scorer, batch)
        scorer = _on(device, scorer)
        on_device = batch.to(device)
        agreement.near(f"values, {name}", token_values(scorer, on_device), values, limit)
        agreement.near(f"scores, {name}", sequence_scores(scorer, on_device), scores, limit)
    _compare_training(agreement, name, (there, here), batch)


def _compare_training(
    agreement: Agreement, name: str, models: tuple[nn.Module, nn.Module], batch: Batch
) -> None:
    """Trains the model of the device and that of the CPU, and compares losses and changes."""
    losses, changes = [], []
    for model in models:
        before = _flat(model)
        losses.append(torch.tensor(_trained(model, batch, "float32")))
        changes.append(_flat(model) - before)
    agreement.near(f"losses of {_STEPS} steps, {name}", losses[0], losses[1], _TRAINED)
    norm = torch.linalg.vector_norm
    difference = float(norm(changes[0] - changes[1]) / norm(changes[1]))
    agreement.within(f"changes of weights, {name}", difference, _TRAINED)


def _trained(model: nn.Module, batch: Batch, precision: str) -> list[float]:
    """Returns the loss of every step of a policy on advantages that are a pattern."""
    backend = OneDeviceBackend(
        model, OptimizerSettings(learning_rate=1e-3, total_steps=_STEPS), precision=precision
    )
    objective = PolicyObjective(0.2, 0.2, None, "token_mean", 0.01, 0.0, "k3", 1.0)
    trainer = RoleTrainer("actor", backend, objective)
    with torch.no_grad():
        old = token_logprobs(model, batch.to(backend.device)).logprobs.cpu()
    pattern = torch.arange(old.numel()).view_as(old) % 7 - 3.0
    fields = {"old_logprobs": old, "advantages": pattern.to(old.dtype) * batch.mask}
    whole = Batch(batch.tokens, batch.lengths, batch.mask, fields, batch.sample_ids)
    counts = GlobalCounts(int(batch.mask.sum()), len(batch.tokens), _SAMPLING.max_new_tokens)
    losses: list[float] = []
    for _ in range(_STEPS):
        trainer.accumulate(whole.to(backend.device), counts)
        losses.append(trainer.step(counts)["loss/policy"])
    return losses


def _time(model: nn.Module, precision: str) -> None:
    """Prints the seconds of generating and of training, the second time that it is done."""
    device = next(model.parameters()).device
    reset_peak(device)
    seconds: dict[str, float] = {}
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        batch = collate(_samples(_answers(model, "native")))
        began_s = time.perf_counter()
        _answers(model, "native")
        seconds["generation"] = time.perf_counter() - began_s
    for _ in range(2):
        began_s = time.perf_counter()
        _trained(model, batch, precision)
        _wait(device)
        seconds[f"{_STEPS} steps"] = time.perf_counter() - began_s
    said = ", ".join(f"{what} {taken:.3f} s" for what, taken in seconds.items())
    print(f"  time on {device.type}, {precision}: {said}, peak {peak_bytes(device) / 1e6:.0f} MB")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _source(family: str, dtype: str) -> ModelSource:
    return ModelSource(architecture={"model_type": family, **_SHAPE}, dtype=dtype, seed=1)


def _policy(family: str, dtype: str) -> nn.Module:
    return load_policy(_source(family, dtype))


def _on(device: torch.device, model: nn.Module) -> nn.Module:
    return model.to(device)


def _answers(model: nn.Module, engine: str, sampling: Sampling = _SAMPLING) -> list[Generation]:
    """Returns two answers to each of four prompts."""
    requests = [
        Request(tuple(range(2 + row, 8 + 3 * row)), (2 * row, 2 * row + 1)) for row in range(4)
    ]
    return build_engine(engine, model, max_sequences=6).generate(requests, sampling)


def _samples(answers: list[Generation]) -> list[Sample]:
    samples: list[Sample] = []
    for row, answer in enumerate(answers):
        prompt = tuple(range(2 + row // 2, 8 + 3 * (row // 2)))
        tokens = torch.tensor((*prompt, *answer.tokens))
        mask = torch.arange(len(tokens)) >= len(prompt)
        samples.append(Sample(answer.sample_id, Prompt(row, prompt, ""), tokens, len(prompt), mask))
    return samples


def _engine_logprobs(answers: list[Generation], batch: Batch) -> Tensor:
    """Returns what an engine says of its tokens, laid out as the batch."""
    logprobs_BT = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    for row, answer in enumerate(answers):
        logprobs_BT[row, batch.mask[row]] = torch.tensor(answer.logprobs, dtype=torch.float64)
    return logprobs_BT


def _flat(model: nn.Module) -> Tensor:
    parameters: Any = model.parameters()
    return torch.cat([parameter.detach().double().cpu().flatten() for parameter in parameters])


if __name__ == "__main__":
    sys.exit(main())
