"""Times one device: decoding by the native engine and by transformers, and a training step.

Both decode the same prompts for exactly as many tokens with the same random weights, in turns. The
limit of decoding is the time in which the device reads weights and cache as often as there are
steps; that of training the time of the same operations in one large product.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from flexrlhf.learning.data.experience import Prompt, Sample, collate
from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.rollout.native import NativeEngine
from flexrlhf.learning.rollout.protocol import Request, Sampling
from flexrlhf.learning.training.memory import peak_bytes, reset_peak
from flexrlhf.learning.training.objectives import GlobalCounts, PolicyObjective
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.optimizer import OptimizerSettings
from flexrlhf.learning.training.step import RoleTrainer

_REPEATS: Final = 3
_VOCABULARY: Final = 32768
_PASSES: Final = 3
"""A backward pass has twice the operations of a forward one."""


@dataclass(frozen=True, slots=True)
class Job:
    """A model and what it is to do."""

    name: str
    width: int
    layers: int
    prompt_tokens: int
    new_tokens: int
    batches: tuple[int, ...]
    trained_rows: int
    dtype: str

    @property
    def architecture(self) -> dict[str, Any]:
        """Of a Llama with heads 64 wide, four of which share keys."""
        return {
            "model_type": "llama",
            "vocab_size": _VOCABULARY,
            "hidden_size": self.width,
            "intermediate_size": 8 * self.width // 3 // 64 * 64,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.width // 64,
            "num_key_value_heads": max(1, self.width // 256),
            "max_position_embeddings": 2048,
            "tie_word_embeddings": True,
        }


_JOBS: Final = {
    "cuda": (
        Job("0.1B, bfloat16", 768, 12, 64, 128, (1, 32, 256), 32, "bfloat16"),
        Job("1.1B, bfloat16", 2048, 22, 64, 128, (1, 32, 256), 16, "bfloat16"),
    ),
    "cpu": (Job("tiny, float32", 256, 2, 8, 16, (1, 8), 4, "float32"),),
}


@dataclass(frozen=True, slots=True)
class Row:
    """What was timed."""

    job: str
    what: str
    ours_s: list[float]
    theirs_s: list[float]
    """Of transformers; empty where there is nothing beside ours."""
    limit_s: float
    peak_bytes: int
    launched_s: list[float] = field(default_factory=list)
    """Of ours without captured steps; empty where none are captured."""

    def line(self) -> str:
        """Returns the row for people."""
        ours = statistics.median(self.ours_s)
        said = f"  {self.job}, {self.what}: {ours:.3f} s, {self.limit_s / ours:.0%} of the limit"
        if self.theirs_s:
            said += f", {statistics.median(self.theirs_s) / ours:.2f} times transformers"
        if self.launched_s:
            said += f", {statistics.median(self.launched_s) / ours:.2f} times uncaptured steps"
        return f"{said}, peak {self.peak_bytes / 1e9:.2f} GB"


def main() -> int:
    """Times every job while there is time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--budget", type=float, required=True, help="seconds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, end_s = torch.device(options.device), time.monotonic() + options.budget
    rows: list[Row] = []
    bandwidth, flops = _read_bandwidth(device), {}
    print(f"  reads {bandwidth / 1e9:.0f} GB/s", flush=True)
    for job in _JOBS[options.device]:
        model = nn.Module.to(_model(job), device)
        flops[job.dtype] = flops.get(job.dtype) or _product_flops(device, job.dtype)
        works = [partial(_decoding, model, job, batch, bandwidth) for batch in job.batches]
        works.append(partial(_training, model, job, flops[job.dtype]))
        for work in works:
            if time.monotonic() > end_s:
                print(f"  {job.name}: left out, the time is up")
                break
            rows.append(work())
            print(rows[-1].line(), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


def _decoding(model: nn.Module, job: Job, batch: int, bandwidth: float) -> Row:
    device = next(model.parameters()).device
    engine, launching = (
        NativeEngine(model, max_sequences=batch, captures_steps=captures)
        for captures in (True, False)
    )
    prompts = [
        tuple((7 * row + place) % (_VOCABULARY - 1) + 1 for place in range(job.prompt_tokens))
        for row in range(batch)
    ]
    requests = [Request(prompt, (row,)) for row, prompt in enumerate(prompts)]
    sampling = Sampling(max_new_tokens=job.new_tokens)
    tokens = torch.tensor(prompts, device=device)
    causal_lm: Any = model

    def ours(engine: NativeEngine = engine) -> None:
        answers = engine.generate(requests, sampling)
        assert all(len(answer.tokens) == job.new_tokens for answer in answers)

    def theirs() -> None:
        found = causal_lm.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=True,
            top_k=0,
            min_new_tokens=job.new_tokens,
            max_new_tokens=job.new_tokens,
            pad_token_id=0,
        )
        assert found.shape[1] == job.prompt_tokens + job.new_tokens

    reset_peak(device)
    ours()
    peak = peak_bytes(device)
    theirs()
    works = [ours, theirs]
    if device.type == "cuda":
        works.append(partial(ours, launching))
    ours_s, theirs_s, *launched_s = _in_turns(device, works)
    weights = sum(weight.nbytes for weight in model.parameters())
    config = causal_lm.config
    cached = config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim
    context = job.prompt_tokens + job.new_tokens / 2
    size = next(model.parameters()).element_size()
    read = weights + batch * context * cached * size
    return Row(
        job.name,
        f"{job.new_tokens} tokens for {batch}",
        ours_s,
        theirs_s,
        limit_s=job.new_tokens * read / bandwidth,
        peak_bytes=peak,
        launched_s=launched_s[0] if launched_s else [],
    )


def _training(model: nn.Module, job: Job, flops: float) -> Row:
    """Times gradient and step of a policy; half of each row is an answer."""
    device = next(model.parameters()).device
    length = 4 * job.prompt_tokens
    samples = [_sample(row, length) for row in range(job.trained_rows)]
    backend = OneDeviceBackend(
        model,
        OptimizerSettings(learning_rate=0.0, total_steps=100),
        precision="bfloat16" if device.type == "cuda" else "float32",
    )
    objective = PolicyObjective(0.2, 0.2, None, "token_mean", 0.0, 0.0, "k3", 1.0)
    trainer = RoleTrainer("actor", backend, objective)
    batch = collate(samples, objective.fields)
    counts = GlobalCounts(int(batch.mask.sum()), len(samples), length)

    def step() -> None:
        trainer.accumulate(batch.to(device), counts)
        trainer.step(counts)

    step()
    reset_peak(device)
    step()
    peak = peak_bytes(device)
    (times,) = _in_turns(device, [step])
    table = _VOCABULARY * job.width
    inner = sum(weight.numel() for weight in model.parameters()) - table
    tokens = job.trained_rows * length
    operations = _PASSES * 2 * (inner * tokens + table * counts.num_tokens)
    return Row(
        job.name,
        f"a step of {tokens} tokens",
        times,
        [],
        limit_s=operations / flops,
        peak_bytes=peak,
    )


def _sample(row: int, length: int) -> Sample:
    tokens = (torch.arange(length) * (row + 3)) % (_VOCABULARY - 1) + 1
    half = length // 2
    mask = torch.arange(length) >= half
    prompt = Prompt(row, tuple(tokens[:half].tolist()), "")
    sample = Sample(row, prompt, tokens, half, mask)
    sample.fields = {
        "old_logprobs": -9.0 * mask,
        "advantages": (row % 3 - 1.0) * mask,
    }
    return sample


def _model(job: Job) -> nn.Module:
    return load_policy(ModelSource(architecture=job.architecture, dtype=job.dtype, seed=1))


def _read_bandwidth(device: torch.device) -> float:
    """Returns the bytes/s at which a tensor larger than any cache is read."""
    numbers = torch.ones(2**28 if device.type == "cuda" else 2**25, device=device)
    (times,) = _in_turns(device, [numbers.sum])
    return numbers.nbytes / min(times)


def _product_flops(device: torch.device, dtype: str) -> float:
    """Returns the FLOP/s of a large product of matrices."""
    width = 8192 if device.type == "cuda" else 1024
    matrix = torch.randn(width, width, device=device, dtype=getattr(torch, dtype))
    (times,) = _in_turns(device, [lambda: matrix @ matrix])
    return 2 * width**3 / min(times)


def _in_turns(device: torch.device, works: list[Callable[[], object]]) -> list[list[float]]:
    """Returns the seconds of each piece of work, which take turns; the first of all is not kept."""
    times: list[list[float]] = [[] for _ in works]
    works[0]()
    for _ in range(_REPEATS):
        for taken, work in zip(times, works, strict=True):
            _wait(device)
            began_s = time.perf_counter()
            work()
            _wait(device)
            taken.append(time.perf_counter() - began_s)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.exit(main())
