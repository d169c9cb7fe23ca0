"""Generation by transformers, as turns."""

from __future__ import annotations

import torch
from token_prompts import prompt_batches
from transformers import AutoModelForCausalLM
from turns import Turns, assignment


def main() -> None:
    """Generates until no turn is asked for any more."""
    given = assignment()
    job = given["job"]
    torch.set_num_threads(given["settings"]["threads"])
    turns = Turns(job["turn"]["iterations"], ("transformers", "torch"))
    model = AutoModelForCausalLM.from_pretrained(
        given["model"], dtype=getattr(torch, job["dtype"])
    ).eval()
    for prompts in prompt_batches(given):
        tokens_PT = torch.tensor(prompts)
        with torch.inference_mode():
            answers_BT = model.generate(
                tokens_PT,
                attention_mask=torch.ones_like(tokens_PT),
                num_return_sequences=job["samples_per_prompt"],
                do_sample=True,
                temperature=job["temperature"],
                top_k=0,
                top_p=1.0,
                min_new_tokens=job["new_tokens"],
                max_new_tokens=job["new_tokens"],
                pad_token_id=0,
            )
        turns.end_iteration(answers_BT[:, tokens_PT.shape[1] :].numel())


if __name__ == "__main__":
    main()
