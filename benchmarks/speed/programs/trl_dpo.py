"""DPO by TRL, as turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer
from trl_settings import shared_settings
from turns import Turns, assignment, count_steps


class Turning(TrainerCallback):
    """Ends an iteration with every optimiser step, and counts tokens where batches are made."""

    def __init__(self, turns: Turns, collate: Callable[[Any], Any]) -> None:
        self._turns = turns
        self._collate = collate
        self._tokens = 0

    def collated(self, rows: Any) -> Any:
        """Returns the trainer's own batch of rows."""
        batch = self._collate(rows)
        self._tokens = int(batch["attention_mask"].sum())
        return batch

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Counts; batches are all alike, so that the one made last is as good as the one used."""
        self._turns.end_iteration(self._tokens)


def main() -> None:
    """Trains until no turn is asked for any more."""
    given = assignment()
    job, folder = given["job"], Path(given["folder"])
    torch.set_num_threads(given["settings"]["threads"])
    turns = Turns(job["turn"]["iterations"], ("trl", "torch", "transformers"))
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(given["model"], dtype=getattr(torch, job["dtype"]))
        for _ in range(2)
    )
    count_steps(turns)
    trainer = DPOTrainer(
        model=policy,
        ref_model=reference,
        args=DPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=job["pairs"],
            max_length=None,
            beta=job["training"]["kl"]["coefficient"],
            **shared_settings(job),
        ),
        train_dataset=load_dataset("json", data_files=str(folder / "pairs.jsonl"), split="train"),
        processing_class=AutoTokenizer.from_pretrained(given["tokenizer"]),
    )
    turning = Turning(turns, trainer.data_collator)
    trainer.data_collator = turning.collated
    trainer.add_callback(turning)
    trainer.train()


if __name__ == "__main__":
    main()
