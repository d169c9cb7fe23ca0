"""Generation by this package's engine, as turns."""

from __future__ import annotations

import torch
from token_prompts import prompt_batches
from turns import Turns, assignment

from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.protocol import Request, Sampling
from flexrlhf.learning.training.memory import share_one_heap


def main() -> None:
    """Generates until no turn is asked for any more."""
    given = assignment()
    job = given["job"]
    torch.set_num_threads(given["settings"]["threads"])
    share_one_heap()
    turns = Turns(job["turn"]["iterations"], ("flexrlhf", "torch", "transformers"))
    model = load_policy(ModelSource(path=given["model"], dtype=job["dtype"]))
    engine = build_engine("native", model)
    ends = model.generation_config.eos_token_id
    sampling = Sampling(
        max_new_tokens=job["new_tokens"],
        min_new_tokens=job["new_tokens"],
        temperature=job["temperature"],
        end_tokens=tuple(ends if isinstance(ends, list) else [ends] if ends is not None else []),
    )
    answers = job["samples_per_prompt"]
    for number, prompts in enumerate(prompt_batches(given)):
        first = number * len(prompts) * answers
        requests = [
            Request(tuple(prompt), tuple(range(first + at * answers, first + (at + 1) * answers)))
            for at, prompt in enumerate(prompts)
        ]
        made = engine.generate(requests, sampling)
        turns.end_iteration(sum(len(answer.tokens) for answer in made))


if __name__ == "__main__":
    main()
