"""The families that plans split are those that are loaded so."""

from __future__ import annotations

import pytest

from flexrlhf.core.model_families import STAGED_FAMILIES, TENSOR_PARALLEL_FAMILIES
from flexrlhf.learning.models import pipeline_stage


def test_every_staged_family_has_its_norm():
    assert set(pipeline_stage._FINAL_NORMS) == set(STAGED_FAMILIES)


@pytest.mark.parametrize("family", TENSOR_PARALLEL_FAMILIES)
def test_layers_of_tensor_parallel_families_have_the_parts_that_are_cut(family: str):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes, **heads))
    names = {name.rsplit(".", 2)[-2] for name, _ in model.model.layers[0].named_parameters()}
    assert {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"} <= names
