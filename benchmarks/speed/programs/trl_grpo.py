"""GRPO by TRL, as turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from rewards import variety
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl_settings import shared_settings
from turns import Turns, assignment, count_steps


class Turning(TrainerCallback):
    """Ends an iteration with every rollout's last optimiser step."""

    def __init__(self, turns: Turns, steps: int, answers: list[int]) -> None:
        self._turns = turns
        self._steps = steps
        self._answers = answers

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Counts; TRL calls a step what is an optimiser step here."""
        if state.global_step % self._steps == 0:
            tokens, self._answers[:] = sum(self._answers), []
            self._turns.end_iteration(tokens)


def main() -> None:
    """Trains until no turn is asked for any more."""
    given = assignment()
    job, folder = given["job"], Path(given["folder"])
    torch.set_num_threads(given["settings"]["threads"])
    turns = Turns(job["turn"]["iterations"], ("trl", "torch", "transformers"))
    tokenizer = AutoTokenizer.from_pretrained(given["tokenizer"])
    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=getattr(torch, job["dtype"]))
    answers: list[int] = []

    def reward(completions: list[str], completion_ids: list[list[int]], **columns: Any):
        answers.extend(map(len, completion_ids))
        return variety(completions)

    count_steps(turns)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=_config(job, folder),
        train_dataset=load_dataset("json", data_files=str(folder / "prompts.jsonl"), split="train"),
        processing_class=tokenizer,
        callbacks=[Turning(turns, _steps(job), answers)],
    )
    trainer.train()


def _steps(job: dict[str, Any]) -> int:
    return job["training"]["epochs"] * job["training"]["mini_batches"]


def _config(job: dict[str, Any], folder: Path) -> GRPOConfig:
    training, samples = job["training"], job["prompts"] * job["samples_per_prompt"]
    return GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=samples // training["mini_batches"],
        steps_per_generation=training["mini_batches"],
        num_iterations=training["epochs"],
        num_generations=job["samples_per_prompt"],
        max_completion_length=job["new_tokens"],
        generation_kwargs={"min_new_tokens": job["new_tokens"]},
        temperature=job["temperature"],
        beta=training["kl"]["coefficient"],
        **shared_settings(job),
    )


if __name__ == "__main__":
    main()
