"""Any row that says something sensible in some columns and nothing in others is answered."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from flexrlhf.planning.cases.prediction import predict_row
from flexrlhf.planning.cases.systems import SYSTEMS
from flexrlhf.planning.cases.vocabulary import (
    ALGORITHMS,
    COLUMNS,
    ENGINES,
    METRICS,
    STRATEGIES,
)
from flexrlhf.planning.cluster.catalogue import DEVICE_TYPES
from flexrlhf.planning.costs.shape_catalogue import SHAPES

nothing = st.sampled_from(["", "unstated"])


def words(*names):
    return st.sampled_from(names) | nothing


def numbers(*values):
    return st.sampled_from([str(value) for value in values]) | nothing


models = words(*SHAPES)
tokens = numbers(1, 128, 1000, 32768)
degrees = numbers(1, 2, 3, 8)
counts = numbers(1, 2, 7, 16, 96)
CELLS = {
    "system": words(*(system.name for system in SYSTEMS.values()), "other"),
    "algorithm": words(*ALGORITHMS),
    "strategy": words(*STRATEGIES),
    "gpu": words(*DEVICE_TYPES, "mixed:8xA100-80G+8xV100-32G", "mixed:H20-96G+L40S-48G"),
    "n_gpus": counts,
    "gpus_per_node": numbers(1, 4, 8),
    "n_gpus_generate": counts,
    "n_gpus_train": counts,
    "n_gpus_other": numbers(0, 1, 8),
    "interconnect": words("InfiniBand", "RoCE", "Ethernet between GPU types", "NVL72"),
    "actor_model": models,
    "critic_model": models,
    "reference_model": models,
    "reward_model": models,
    "prompt_tokens_mean": tokens,
    "prompt_tokens_max": tokens,
    "response_tokens_mean": tokens,
    "response_tokens_max": tokens,
    "sequence_tokens_total": tokens,
    "prompts_per_iteration": numbers(1, 64, 1000),
    "samples_per_prompt": numbers(1, 8),
    "train_batch_samples": numbers(1, 128),
    "num_minibatches": numbers(1, 4, 100),
    "epochs": numbers(1, 2),
    "steps": numbers(1, 100),
    "lora_rank": numbers(8, 128),
    "dtype": words("bf16", "fp16", "fp8"),
    "zero_stage": numbers(0, 1, 2, 3),
    "tp_train": degrees,
    "pp_train": degrees,
    "cp_train": degrees,
    "ep_train": degrees,
    "tp_generate": degrees,
    "pp_generate": degrees,
    "offload": words("yes", "no"),
    "recompute": words("yes", "no"),
    "generation_engine": words(*ENGINES),
    "generation_batch_per_gpu": numbers(1, 16),
    "variant": st.sampled_from(
        ["", "hybrid_engine=off", "staleness=0;partial_rollout=no", "max_lag=1;turns=16", ";;x"]
    ),
}


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries(CELLS), st.sampled_from(sorted(METRICS)))
def test_every_sensible_row_is_answered_with_a_number(cells, metric):
    row = dict.fromkeys(COLUMNS, "") | cells | {"metric": metric}
    found = predict_row(row, 2)
    assert found.status == "ok"
    assert math.isfinite(found.value)
