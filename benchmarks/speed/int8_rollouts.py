"""Times generation with weights in int8 against float32 in alternating turns, on this machine.

    python -m benchmarks.speed.int8_rollouts MODEL [--threads 2] [--turns 5] [--new-tokens 32]

MODEL is a folder or a GGUF file of a Llama or Qwen model. Reading the prompts of 64 tokens counts,
and so does rounding the weights. It also says how far the answers' policy is from the trainer's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from flexrlhf.core.names import RolloutWeights
from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.rollout.native import NativeEngine
from flexrlhf.learning.rollout.protocol import Request, Sampling

_JOBS = {"G1": (1, 1), "G32": (8, 4)}
_PROMPT_TOKENS = 64
_WEIGHTS: tuple[RolloutWeights, ...] = ("same", "int8")


def main() -> None:
    """Prints a line for each job, and one for the distance of the policies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--jobs", nargs="*", default=list(_JOBS))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model: Any = load_policy(ModelSource(path=given.model, dtype="float32"))
    engines = {weights: NativeEngine(model, weights=weights) for weights in _WEIGHTS}
    for job in given.jobs:
        num_prompts, num_answers = _JOBS[job]
        requests = _requests(num_prompts, num_answers, model.config.vocab_size)
        total = num_prompts * num_answers * given.new_tokens
        speeds: dict[str, list[float]] = {weights: [] for weights in _WEIGHTS}
        for turn in range(given.turns):
            sampling = Sampling(max_new_tokens=given.new_tokens, seed=turn)
            for weights, engine in engines.items():
                begun_s = time.perf_counter()
                engine.generate(requests, sampling)
                speeds[weights].append(total / (time.perf_counter() - begun_s))
        ratios = [a / b for a, b in zip(speeds["int8"], speeds["same"], strict=True)]
        shown = [f"{weights} {_spread(values)} tokens/s" for weights, values in speeds.items()]
        print(f"{job}: {', '.join(shown)}, ratio {_spread(ratios)}", flush=True)
    print(_distance(model, engines["int8"]), flush=True)


def _requests(num_prompts: int, num_answers: int, vocabulary: int) -> list[Request]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, vocabulary, (num_prompts, _PROMPT_TOKENS), generator=generator)
    return [
        Request(tuple(row), tuple(range(number * num_answers, (number + 1) * num_answers)))
        for number, row in enumerate(tokens.tolist())
    ]


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


@torch.no_grad()
def _distance(model: Any, engine: NativeEngine) -> str:
    """Of log-probs of sampled answers: k3 of KL(engine || trainer), and the largest gap."""
    requests = _requests(4, 1, model.config.vocab_size)
    gaps: list[torch.Tensor] = []
    for request, answer in zip(
        requests, engine.generate(requests, Sampling(max_new_tokens=48)), strict=True
    ):
        tokens = torch.tensor([[*request.prompt_tokens, *answer.tokens]])
        logprobs = model(tokens).logits[0, _PROMPT_TOKENS - 1 : -1].log_softmax(-1)
        mine = logprobs.gather(1, tokens[0, _PROMPT_TOKENS:, None])[:, 0]
        gaps.append(mine - torch.tensor(answer.logprobs))
    gap = torch.cat(gaps)
    divergence = (torch.expm1(gap) - gap).mean().item()
    return (
        f"{len(gap)} tokens: KL {divergence:.3g} nats a token, largest gap {gap.abs().max():.2g} "
        f"nats, mean weight {gap.exp().mean():.3f}, above 2: {(gap > 0.693).float().mean():.1%}"
    )


if __name__ == "__main__":
    main()
