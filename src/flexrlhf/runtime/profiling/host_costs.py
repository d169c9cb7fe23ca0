"""What the host does around the numbers: launches of a pass, a layer, a step, a sample, a task.

Models so narrow that their products cost next to nothing show it; models of two depths and batches
of two sizes tell its parts from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from flexrlhf.core.clock import WallClock
from flexrlhf.learning.data.collation import COLLATE
from flexrlhf.learning.data.experience import Prompt
from flexrlhf.learning.rollout.native import NativeEngine
from flexrlhf.learning.rollout.protocol import Request, Sampling
from flexrlhf.learning.scoring.advantage import AdvantageSettings, assign_advantages
from flexrlhf.learning.scoring.passes import score_logprobs
from flexrlhf.planning.costs.profiled.constants import PassCost, UpdateCost
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.runtime.generation import Generator
from flexrlhf.runtime.in_process import InProcessWorkers
from flexrlhf.runtime.measurements import Measurements
from flexrlhf.runtime.profiling.smallest_run import tokenizer
from flexrlhf.runtime.profiling.subjects import (
    VOCABULARY,
    cache_values,
    counts,
    llama,
    samples,
    trainer,
)
from flexrlhf.runtime.profiling.timing import Work, median_s, medians_s

_NARROW: Final = 32
_SHALLOW, _DEEP = 2, 18
_FEW, _MANY = 8, 64
_TOKENS: Final = 4
_SHORT, _LONG = 8, 40
"""Tokens that are generated; the difference are whole steps. Both are enough for the engine to pack
its weights, which it does not for fewer."""
_CACHE_WIDTH: Final = 128
_NEAR, _FAR = 4, 204
_FLOAT_BYTES: Final = 4
_BARRIER_TOKENS: Final = 32
_PARAMETERS: Final = 2**24


def pass_cost(work_of: Callable[[nn.Module, int], Work], device: torch.device) -> PassCost:
    """Returns the parts of a pass.

    Args:
        work_of: makes the pass of a model over so many sequences.
        device: where the models are.
    """
    shallow, deep = (llama(_NARROW, layers, device) for layers in (_SHALLOW, _DEEP))
    cases = ((shallow, _FEW), (deep, _FEW), (shallow, _MANY), (deep, _MANY))
    return _parts(*medians_s([work_of(*case) for case in cases], budget_s=3.0))


def _parts(base_s: float, deep_s: float, many_s: float, both_s: float) -> PassCost:
    """Solves four times, of two depths and two batches, for the four parts of a pass."""
    layers, sequences = _DEEP - _SHALLOW, _MANY - _FEW
    cross_s = max(0.0, (both_s - deep_s - many_s + base_s) / (layers * sequences))
    layer_s = max(0.0, (deep_s - base_s) / layers - _FEW * cross_s)
    sequence_s = max(0.0, (many_s - base_s) / sequences - _SHALLOW * cross_s)
    rest_s = base_s - _SHALLOW * layer_s - _FEW * (sequence_s + _SHALLOW * cross_s)
    return PassCost(max(0.0, rest_s), layer_s, sequence_s, cross_s)


def scoring(model: nn.Module, count: int) -> Work:
    """Returns a pass without gradients over so many short sequences."""
    rows = samples(count, _TOKENS)
    return lambda: score_logprobs(model, rows, temperature=1.0, max_tokens=count * _TOKENS)


def training(model: nn.Module, count: int) -> Work:
    """Returns a pass with gradients over so many short sequences."""
    role, rows = trainer(model), samples(count, _TOKENS)

    def accumulate() -> None:
        batch = COLLATE["prompts"](rows, role.objective.fields)
        role.accumulate(batch.to(role.backend.device), counts(count))

    return accumulate


def decode_cost(device: torch.device) -> PassCost:
    """Returns the parts of a decode step."""
    shallow, deep = (llama(_NARROW, layers, device) for layers in (_SHALLOW, _DEEP))
    cases = ((shallow, _FEW), (deep, _FEW), (shallow, _MANY), (deep, _MANY))
    return _parts(*_steps_s([(model, count, 3) for model, count in cases], budget_s=6.0))


def cache_bandwidth(device: torch.device) -> float:
    """Returns the bytes/s at which a decode step attends to keys and values.

    A step over long sequences differs from one over short ones by nothing else.
    """
    model = llama(_CACHE_WIDTH, _SHALLOW, device)
    cases = [(model, _MANY, prompt) for prompt in (_NEAR, _FAR)]
    near_s, far_s = _steps_s(cases, budget_s=3.0)
    values = _SHALLOW * cache_values(_CACHE_WIDTH) * (_FAR - _NEAR) * _MANY
    return values * _FLOAT_BYTES / max(far_s - near_s, 1e-6)


def _steps_s(cases: Sequence[tuple[nn.Module, int, int]], *, budget_s: float) -> list[float]:
    """Returns the seconds of one decode step for each model, number of answers and prompt."""
    works = [_generation(*case, tokens) for case in cases for tokens in (_SHORT, _LONG)]
    times = medians_s(works, budget_s=budget_s)
    pairs = zip(times[::2], times[1::2], strict=True)
    return [(long_s - short_s) / (_LONG - _SHORT) for short_s, long_s in pairs]


def _generation(model: nn.Module, count: int, prompt_tokens: int, tokens: int) -> Work:
    engine = NativeEngine(model)
    prompt = tuple(range(1, VOCABULARY)) * (1 + prompt_tokens // VOCABULARY)
    requests = [Request(prompt[:prompt_tokens], (number,)) for number in range(count)]
    sampling = Sampling(max_new_tokens=tokens)
    return lambda: engine.generate(requests, sampling)


def answer_s(device: torch.device) -> float:
    """Returns the seconds per answer beside its tokens: prompt, text, tensors of the sample."""
    generator = Generator(
        NativeEngine(llama(_NARROW, _SHALLOW, device)), tokenizer(), torch.float32
    )
    prompts = [(n, Prompt(n, (1, 2, 3), "")) for n in range(_MANY)]
    sampling = Sampling(max_new_tokens=1)
    few_s, many_s = medians_s(
        [
            lambda: generator.answer(prompts[:_FEW], 1, sampling),
            lambda: generator.answer(prompts, 1, sampling),
        ],
        budget_s=1.0,
    )
    return max(0.0, (many_s - few_s) / (_MANY - _FEW))


def barrier_s() -> float:
    """Returns the seconds per sample of rewards and advantages."""
    rows = samples(_MANY, _BARRIER_TOKENS)
    for row in rows:
        row.mask[_BARRIER_TOKENS // 2 :] = True
    settings = AdvantageSettings(estimator="gae")
    ids = list(range(_MANY))
    return median_s(lambda: assign_advantages(rows, ids, settings, kl_coef=0.1)) / _MANY


@dataclass(slots=True)
class _IdleWorker:
    """Does nothing, at once."""

    def run(self, task: Task) -> Measurements:  # noqa: ARG002 - a worker's signature
        return {}


def task_s() -> float:
    """Returns the seconds in which a task reaches the worker and its outcome comes back."""
    workers = InProcessWorkers({"main": _IdleWorker()}, WallClock())
    task = Task("profile", 0, "score", "advantage", "main")
    try:
        return median_s(lambda: (workers.start(task), workers.collect(60.0)))
    finally:
        workers.close()


def update_cost(device: torch.device) -> UpdateCost:
    """Returns the parts of an optimiser step."""
    shallow, deep = (llama(_NARROW, layers, device) for layers in (_SHALLOW, _DEEP))
    large = nn.Linear(4096, _PARAMETERS // 4096, bias=False, device=device)
    base_s, deep_s, large_s = (_step_s(model) for model in (shallow, deep, large))
    per_tensor = (deep_s - base_s) / (_num_tensors(deep) - _num_tensors(shallow))
    tensor_s = max(0.0, per_tensor)
    step_s = max(0.0, base_s - _num_tensors(shallow) * tensor_s)
    return UpdateCost(step_s, tensor_s, max(0.0, large_s - step_s - tensor_s) / _PARAMETERS)


def _step_s(model: nn.Module) -> float:
    backend = trainer(model).backend

    def fill() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)

    return median_s(backend.step, budget_s=0.7, before=fill)


def _num_tensors(model: nn.Module) -> int:
    return sum(1 for _ in model.parameters())
