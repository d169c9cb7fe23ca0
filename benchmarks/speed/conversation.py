"""Times a conversation of several turns with prefixes kept and without, in alternating turns.

    python -m benchmarks.speed.conversation [--threads 2] [--rounds 3] [--new-tokens 32]

SmolLM2-135M's sizes with random weights, float32. Every turn asks again all that was said, with so
many tokens more, and says how long it took and how many tokens of the prompt were read.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from flexrlhf.learning.rollout.native import NativeEngine
from flexrlhf.learning.rollout.protocol import Request, Sampling

_SIZES = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
}
_KEPT = {"read whole": 0, "kept": 4096}


def main() -> None:
    """Prints a line for each turn of the conversation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--first-tokens", type=int, default=256)
    parser.add_argument("--said-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=32)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(LlamaConfig(**_SIZES))
    seconds: dict[tuple[str, int], list[float]] = {}
    read: dict[int, int] = {}
    lengths: dict[int, int] = {}
    for number in range(-1, given.rounds):  # the first is not counted
        said: dict[str, tuple[int, ...]] = {}
        for name, most in _KEPT.items():
            engine = NativeEngine(model, kept_prefix_tokens=most)
            history: tuple[int, ...] = ()
            for turn in range(given.turns):
                count = given.said_tokens if turn else given.first_tokens
                drawn = torch.randint(
                    3, _SIZES["vocab_size"], (count,), generator=torch.Generator().manual_seed(turn)
                )
                history += tuple(drawn.tolist())
                begun_s = time.perf_counter()
                (answer,) = engine.generate(
                    [Request(history, (turn,))], Sampling(max_new_tokens=given.new_tokens)
                )
                if number >= 0:
                    taken = seconds.setdefault((name, turn), [])
                    taken.append(time.perf_counter() - begun_s)
                lengths[turn] = len(history)
                if most:
                    read[turn] = engine.take_prompt_counts().read
                history += answer.tokens
            said[name] = history
        print("the same tokens" if len(set(said.values())) == 1 else "OTHER TOKENS", flush=True)
    for turn in range(given.turns):
        whole, kept = seconds["read whole", turn], seconds["kept", turn]
        ratios = [one / other for one, other in zip(whole, kept, strict=True)]
        print(
            f"turn {turn + 1}: {lengths[turn]} tokens, {read[turn]} read; whole "
            f"{_spread(whole)} s, kept {_spread(kept)} s, ratio {_spread(ratios)}"
        )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
