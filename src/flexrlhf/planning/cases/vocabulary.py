"""The closed lists of a case file: columns, metrics with their units, algorithms, strategies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

METRICS: Final[Mapping[str, str]] = {
    "iteration_time": "s",
    "generation_time": "s",
    "generate_sequences_time": "s",
    "generation_wait_time": "s",
    "score_time": "s",
    "old_logprob_time": "s",
    "reference_time": "s",
    "train_time": "s",
    "actor_train_time": "s",
    "microbatch_train_time": "s",
    "weight_sync_time": "s",
    "overhead_time": "s",
    "validation_time": "s",
    "first_token_latency": "s",
    "run_time": "s",
    "resize_time": "s",
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_gpu": "tokens/s/gpu",
    "train_tokens_per_s": "tokens/s",
    "decode_tokens_per_s_per_gpu": "tokens/s/gpu",
    "mfu": "fraction",
    "generation_tflops_per_gpu": "tflops/gpu",
    "train_tflops_per_gpu": "tflops/gpu",
    "iteration_tflops_per_gpu": "tflops/gpu",
    "generation_microbatch": "samples",
    "train_microbatch": "samples",
    "max_batch_samples": "samples",
    "max_model_params": "params",
    "fits": "0/1",
    "peak_memory": "GB",
    "generation_fraction": "fraction",
    "score_fraction": "fraction",
    "train_fraction": "fraction",
    "actor_forward_fraction": "fraction",
    "critic_forward_fraction": "fraction",
    "reference_forward_fraction": "fraction",
    "reward_forward_fraction": "fraction",
    "speedup": "x",
    "speedup_per_cost": "x",
    "scaling_efficiency": "fraction",
    "generation_time_reduction": "fraction",
    "weight_sync_time_reduction": "s",
    "cost_model_mape": "fraction",
    "cost_model_max_error": "fraction",
    "cost_model_r2": "fraction",
    "plan_exact_match": "fraction",
}
ALGORITHMS: Final = ("ppo", "ppo_shared", "grpo", "dapo", "remax", "safe_rlhf", "none")
STRATEGIES: Final = (
    "colocated",
    "interleaved_1",
    "interleaved_2",
    "disaggregated",
    "async_disaggregated",
    "async_colocated",
    "split",
    "searched",
    "reward_on_one",
    "trainer_only",
    "inference_only",
)
ENGINES: Final = ("vllm", "tensorrt-llm", "transformers")

DEVICE_COUNTS: Final = (
    "n_gpus",
    "gpus_per_node",
    "n_gpus_generate",
    "n_gpus_train",
    "n_gpus_other",
)
"""Columns that count devices: what is no positive whole number refuses the row."""
MODELS: Final = ("actor_model", "critic_model", "reference_model", "reward_model")
NUMBERS: Final = (
    "prompt_tokens_mean",
    "prompt_tokens_max",
    "response_tokens_mean",
    "response_tokens_max",
    "sequence_tokens_total",
    "prompts_per_iteration",
    "samples_per_prompt",
    "train_batch_samples",
    "num_minibatches",
    "epochs",
    "steps",
    "lora_rank",
    "zero_stage",
    "tp_train",
    "pp_train",
    "cp_train",
    "ep_train",
    "dp_train",
    "tp_generate",
    "pp_generate",
    "generation_batch_per_gpu",
)
WORDS: Final = (
    "system",
    "system_version",
    "algorithm",
    "strategy",
    "gpu",
    "interconnect",
    "dtype",
    "offload",
    "recompute",
    "generation_engine",
    "metric",
    "unit",
)
COLUMNS: Final = (*WORDS, *DEVICE_COUNTS, *MODELS, *NUMBERS, "variant")
"""Every column that a prediction may read. `value`, `notes`, `source`, `provenance` and `id` are
copied from the file to the answer without a look at them."""
OPTIONAL_COLUMNS: Final = ("system_version", "unit")
UNSTATED: Final = "unstated"
