"""Tokens per second of the native engine with and without speculation, on a task that copies.

SmolLM2-135M-Instruct repeats sentences that it is given. Settings run in turns; each row is the
median over the turns. Answers must be the same in all settings, up to where float32 rounds
otherwise, which is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from flexrlhf.learning.models.loading import load_policy, load_tokenizer
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.protocol import Generation, Request, Sampling
from flexrlhf.learning.rollout.speculation.settings import Speculation

PLACES = ("station", "library", "harbour", "museum", "market", "theatre", "school", "garden")
TEXT = (
    "The old {place} at the end of the street was opened in {year} by the mayor of the town. "
    "It has {number} rooms on two floors, a small courtyard with a lime tree, and a clock that has "
    "been ten minutes late since the winter of 1963. On Sundays the children of the town come to "
    "the {place} to feed the pigeons, and in the evening the caretaker closes the gate."
)
TASKS = {
    "copy": "Repeat the following text word by word.\n\n",
    "story": "Write a long story about what happens next in this place.\n\n",
}


def main() -> None:
    """Times every setting and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the GGUF file")
    parser.add_argument("--task", choices=tuple(TASKS), default="copy")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=96, help="new ones of each answer, exactly")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--proposed", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = load_policy(ModelSource(path=arguments.model))
    requests = prompts(arguments.model, TASKS[arguments.task], arguments.batch)
    ends = model.generation_config.eos_token_id
    sampling = Sampling(
        max_new_tokens=arguments.tokens,
        min_new_tokens=arguments.tokens,
        temperature=arguments.temperature,
        end_tokens=tuple(ends) if isinstance(ends, list) else (ends,),
    )
    settings: list[Speculation | None] = [None, *map(Speculation, arguments.proposed)]
    engines = [build_engine("native", model, speculation=setting) for setting in settings]
    seconds: list[list[float]] = [[] for _ in engines]
    answers: list[list[Generation]] = [[] for _ in engines]
    for turn in range(arguments.turns + 1):  # the first is not timed
        for number, engine in enumerate(engines):
            engine.take_counts()
            begun = time.perf_counter()
            answers[number] = engine.generate(requests, sampling)
            if turn:
                seconds[number].append(time.perf_counter() - begun)
    num_tokens = arguments.batch * arguments.tokens
    print(f"task {arguments.task}, batch {arguments.batch}, temperature {arguments.temperature}")
    print("| proposed | tokens/s | against none | acceptance | tokens per step | same tokens |")
    print("|---|---|---|---|---|---|")
    plain = statistics.median(seconds[0])
    for setting, engine, times, made in zip(settings, engines, seconds, answers, strict=True):
        counts = engine.take_counts()
        median = statistics.median(times)
        accepted = f"{counts.accepted / counts.verified:.2f}" if counts.verified else "-"
        per_step = f"{counts.tokens / counts.steps:.2f}" if counts.steps else "1"
        print(
            f"| {setting.most_proposed if setting else 'none'} | {num_tokens / median:.1f} "
            f"| {plain / median:.2f} ({plain / max(times):.2f} to {plain / min(times):.2f}) "
            f"| {accepted} | {per_step} | {same_share(made, answers[0]):.1%} |"
        )


def prompts(model: str, task: str, batch: int) -> list[Request]:
    """Returns a prompt of its own for each answer, in the model's chat form."""
    tokenizer: Any = load_tokenizer(str(Path(model)))
    requests: list[Request] = []
    for number in range(batch):
        place = PLACES[number % len(PLACES)]
        text = TEXT.format(place=place, year=1840 + 7 * number, number=11 + number)
        chat = [{"role": "user", "content": task + text}]
        tokens = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        requests.append(Request(tuple(tokens), (number,)))
    return requests


def same_share(ours: Sequence[Generation], theirs: Sequence[Generation]) -> float:
    """Returns the share of tokens before the first that differs."""
    same = total = 0
    for one, other in zip(ours, theirs, strict=True):
        pairs = list(zip(one.tokens, other.tokens, strict=True))
        total += len(pairs)
        same += next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
    return same / total


if __name__ == "__main__":
    main()
