"""How fast answers are generated as one thing grows: batch, length, answers to a prompt, model."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from contest import Result
from jobs import Generating, parse_job

Row = Mapping[str, Any]

PROMPT_TOKENS: Final = 64
ITERATIONS: Final = 2
"""Of a turn."""
_DEADLINE_S: Final = 120.0
_PEERS: Final = (
    {"program": "transformers", "version": "5.19.0", "goal": 1.0},
    {"program": "limit", "goal": 0.8},
)
# Vocabulary, layers, width, inner width, heads, and heads that keys and values have.
_SHAPES: Final[Mapping[str, Sequence[int]]] = {
    "1M": (2048, 4, 128, 384, 4, 2),
    "10M": (8192, 8, 256, 896, 8, 4),
    "35M": (16384, 8, 512, 1536, 8, 8),
    "135M": (49152, 30, 576, 1536, 9, 3),
}
PARAMETERS: Final[Mapping[str, int]] = {size: int(size[:-1]) * 10**6 for size in _SHAPES}
"""About so many, by the name of a size."""


@dataclass(frozen=True, slots=True)
class Point:
    """One job of the study."""

    size: str = "10M"
    prompts: int = 8
    samples: int = 1
    """Answers to each prompt."""
    new_tokens: int = 64

    @property
    def name(self) -> str:
        """What its row is called."""
        return f"{self.size} {self.prompts}x{self.samples} {self.new_tokens}"

    @property
    def job(self) -> Generating:
        """The job that programs are told."""
        job = parse_job(
            {
                "what": f"generation alone, Llama with {self.size} random parameters",
                "does": "generate",
                "model": {"architecture": _architecture(self.size)},
                "dtype": "float32",
                "prompts": self.prompts,
                "prompt_tokens": PROMPT_TOKENS,
                "samples_per_prompt": self.samples,
                "new_tokens": self.new_tokens,
                "temperature": 1.0,
                "turn": {"iterations": ITERATIONS, "deadline_s": _DEADLINE_S},
                "peers": _PEERS,
            },
            f"point {self.name}",
        )
        assert isinstance(job, Generating), "it says so"
        return job


BASE: Final = Point()
ANSWERS: Final = 16
"""Of a batch in which the answers to a prompt grow and prompts become fewer."""
AXES: Final[Mapping[str, Mapping[int, Point]]] = {
    "prompts, one answer each": {n: replace(BASE, prompts=n) for n in (1, 4, 8, 16, 64)},
    "new tokens": {n: replace(BASE, new_tokens=n) for n in (32, 64, 128, 512)},
    f"answers to a prompt, of {ANSWERS}": {
        n: replace(BASE, prompts=ANSWERS // n, samples=n) for n in (1, 4, 16)
    },
    "parameters": {PARAMETERS[size]: replace(BASE, size=size) for size in _SHAPES},
}
"""Points by what grows and its value; some points are part of several."""


def points() -> dict[str, Point]:
    """Returns all points by name, each once."""
    return {point.name: point for axis in AXES.values() for point in axis.values()}


def row_of(point: Point, results: Sequence[Result], facts: Mapping[str, Any]) -> Row:
    """Returns what came of a point.

    Args:
        point: that was measured.
        results: of all programs.
        facts: when and with which commit.
    """
    tokens = point.job.tokens * ITERATIONS
    return {
        "job": point.name,
        "unit": "tokens/s",
        "programs": {result.name: _speeds(tokens, result) for result in results},
        "settings": {result.name: result.settings for result in results},
        "versions": {result.name: result.versions for result in results},
        **facts,
    }


def _speeds(tokens: int, result: Result) -> dict[str, Any]:
    runs = [tokens / seconds for seconds in result.seconds]
    return {"median": statistics.median(runs), "runs": runs}


def _architecture(size: str) -> dict[str, Any]:
    vocabulary, layers, width, inner, heads, key_heads = _SHAPES[size]
    return {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    }
