"""GRPO by TRL, as turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rewards
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl_settings import shared_settings
from turns import Turns, assignment, count_steps


class Turning(TrainerCallback):
    """Ends an iteration with every rollout's last optimiser step."""

    def __init__(self, turns: Turns, steps: int, answers: list[tuple[int, float]]) -> None:
        self._turns = turns
        self._steps = steps
        self._answers = answers

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Counts; TRL calls a step what is an optimiser step here."""
        if state.global_step % self._steps == 0:
            tokens = sum(tokens for tokens, _ in self._answers)
            reward = sum(reward for _, reward in self._answers) / len(self._answers)
            self._answers.clear()
            self._turns.end_iteration(tokens, reward=reward)


def main() -> None:
    """Trains until no turn is asked for any more."""
    given = assignment()
    job, folder = given["job"], Path(given["folder"])
    torch.set_num_threads(given["settings"]["threads"])
    turns = Turns(job["turn"]["iterations"], ("trl", "torch", "transformers"))
    tokenizer = AutoTokenizer.from_pretrained(given["tokenizer"])
    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=getattr(torch, job["dtype"]))
    answers: list[tuple[int, float]] = []
    rewarded = getattr(rewards, job["reward"])

    def reward(completions: list[str], completion_ids: list[list[int]], **columns: Any):
        found = rewarded(completions)
        answers.extend(zip(map(len, completion_ids), found, strict=True))
        return found

    count_steps(turns)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=_config(job, folder, given["settings"].get("seed", 0)),
        train_dataset=load_dataset("json", data_files=str(folder / "prompts.jsonl"), split="train"),
        processing_class=tokenizer,
        callbacks=[Turning(turns, _steps(job), answers)],
    )
    trainer.train()


def _steps(job: dict[str, Any]) -> int:
    return job["training"]["epochs"] * job["training"]["mini_batches"]


def _config(job: dict[str, Any], folder: Path, seed: int) -> GRPOConfig:
    """Returns the settings; those of the loss are TRL's defaults, told so that they stay."""
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
        top_k=0,
        top_p=1.0,
        loss_type="dapo",  # the mean over all tokens of the batch
        scale_rewards="group",
        importance_sampling_level="token",
        epsilon=0.2,
        mask_truncated_completions=False,
        seed=seed,
        beta=training["kl"]["coefficient"],
        **shared_settings(job),
    )


if __name__ == "__main__":
    main()
