"""PPO by TRL, as turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer
from trl_settings import shared_settings
from turns import Turns, assignment, count_steps


class Turning(TrainerCallback):
    """Ends an iteration with its log.

    Args:
        turns: whose iterations they are.
        tokens: of an iteration's answers, if none of them is cut.
    """

    def __init__(self, turns: Turns, tokens: int) -> None:
        self._turns = turns
        self._tokens = tokens
        self._ends = 0

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Hears how many tokens were ends, after which TRL takes an answer for cut."""
        self._ends = logs["val/num_eos_tokens"]

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Counts; TRL calls a step what is an iteration here."""
        self._turns.end_iteration(self._tokens - self._ends)


def main() -> None:
    """Trains until no turn is asked for any more."""
    given = assignment()
    job, folder = given["job"], Path(given["folder"])
    torch.set_num_threads(given["settings"]["threads"])
    turns = Turns(job["turn"]["iterations"], ("trl", "torch", "transformers"))
    dtype = getattr(torch, job["dtype"])
    tokenizer = AutoTokenizer.from_pretrained(given["tokenizer"], padding_side="left")
    rows = load_dataset("json", data_files=str(folder / "prompts.jsonl"), split="train").map(
        lambda row: {"input_ids": tokenizer(row["prompt"])["input_ids"]}, remove_columns="prompt"
    )
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(given["model"], dtype=dtype) for _ in range(2)
    )
    value, reward = (
        AutoModelForSequenceClassification.from_pretrained(
            given["scorer"], num_labels=1, dtype=dtype
        )
        for _ in range(2)
    )
    # Answers have full length: nothing stops them, and a padding token would count as their end.
    policy.generation_config.suppress_tokens = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    count_steps(turns)
    answers = job["prompts"] * job["samples_per_prompt"]
    trainer = PPOTrainer(
        args=_config(job, folder),
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=reward,
        value_model=value,
        train_dataset=rows,
        eval_dataset=rows.select(range(answers)),
        callbacks=[Turning(turns, answers * job["new_tokens"])],
    )
    trainer.train()


def _config(job: dict[str, Any], folder: Path) -> PPOConfig:
    training, samples = job["training"], job["prompts"] * job["samples_per_prompt"]
    return PPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=samples // training["mini_batches"],
        gradient_accumulation_steps=training["mini_batches"],
        num_mini_batches=training["mini_batches"],
        num_ppo_epochs=training["epochs"],
        local_rollout_forward_batch_size=samples,
        total_episodes=samples * 1_000_000,
        num_sample_generations=0,
        response_length=job["new_tokens"],
        stop_token=None,
        temperature=job["temperature"],
        kl_coef=training["kl"]["coefficient"],
        **shared_settings(job),
    )


if __name__ == "__main__":
    main()
