"""Generation with captured decode steps against generation that launches their operations.

Answers are longer than the cache grows by, end at unlike places, and are more than are written at
one time, so that graphs of many sizes are made and dropped; weights change in place in between. On
a CPU nothing is captured, and this compares the engine with itself.
"""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any, Final

import torch
from agreement import Agreement
from torch import nn

from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.rollout.native import NativeEngine
from flexrlhf.learning.rollout.protocol import Generation, Request, Sampling

_SIZES: Final = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
_GPT2_SIZES: Final = {
    "vocab_size": 300,
    "n_embd": 128,
    "n_layer": 3,
    "n_head": 8,
    "n_positions": 512,
    "initializer_range": 0.1,
}
_FAMILIES: Final = ("llama", "qwen2", "qwen3", "gpt2")
_LIMITS: Final = {"float64": 1e-6, "float32": 1e-3}
"""Of log-probs; norms and rotations of some families are float32 anyway. In bfloat16 rounding may
make another answer, so there only what a capture checks itself is looked at."""
_REQUESTS: Final = [
    Request(tuple(range(2 + row, 8 + 9 * row)), (2 * row, 2 * row + 1)) for row in range(6)
]
_SAMPLING: Final = Sampling(max_new_tokens=160, end_tokens=tuple(range(1, 5)), seed=3)
_AT_ONCE: Final = 7


class _Reasons(logging.Handler):
    """Keeps why steps were not captured."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def main() -> int:
    """Compares all families in all types; returns 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    device = torch.device(parser.parse_args().device)
    reasons = _Reasons()
    logging.getLogger("flexrlhf").addHandler(reasons)
    agreement = Agreement()
    for family in _FAMILIES:
        for dtype in (*_LIMITS, "bfloat16"):
            _compare(agreement, family, dtype, device)
            agreement.same(f"reasons against captures, {family}, {dtype}", reasons.said, [])
    return int(agreement.failed)


def _compare(agreement: Agreement, family: str, dtype: str, device: torch.device) -> None:
    model = nn.Module.to(_policy(family, dtype), device)
    captures, launches = (
        NativeEngine(model, max_sequences=_AT_ONCE, captures_steps=captures_steps)
        for captures_steps in (True, False)
    )
    for when in ("", ", after weights changed in place"):
        if when:
            _change(model)
        found, expected = (engine.generate(_REQUESTS, _SAMPLING) for engine in (captures, launches))
        if dtype in _LIMITS:
            name = f"{family}, {dtype}{when}"
            tokens = [[one.tokens for one in answers] for answers in (found, expected)]
            agreement.same(f"tokens, {name}", *tokens)
            agreement.near(
                f"log-probs, {name}", _logprobs(found), _logprobs(expected), _LIMITS[dtype]
            )


def _policy(family: str, dtype: str) -> nn.Module:
    sizes = _GPT2_SIZES if family == "gpt2" else _SIZES
    return load_policy(
        ModelSource(architecture={"model_type": family, **sizes}, dtype=dtype, seed=1)
    )


def _change(model: nn.Module) -> None:
    """Changes every weight as an optimiser does."""
    parameters: Any = model.parameters()
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(1.02)


def _logprobs(answers: list[Generation]) -> torch.Tensor:
    return torch.tensor([value for one in answers for value in one.logprobs], dtype=torch.float64)


if __name__ == "__main__":
    sys.exit(main())
