"""Models that cannot compute are refused in their own terms, before anything is trained."""

from __future__ import annotations

import pytest
import torch

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.loading import load_policy, load_scorer, load_shared_actor_critic
from flexrlhf.learning.models.soundness import check_soundness, unusable_weight


@pytest.mark.parametrize("load", [load_policy, load_scorer, load_shared_actor_critic])
def test_every_family_is_sound(family, make_source, load):
    for dtype in ("float32", "bfloat16", "float64"):
        check_soundness("actor", load(make_source(family, dtype=dtype)))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), -1e30])
def test_a_damaged_weight_is_named(make_source, number):
    model = load_scorer(make_source("llama", dtype="float32"))
    assert unusable_weight(model) is None
    with torch.no_grad():
        model.get_parameter("model.layers.1.mlp.up_proj.weight")[3, 4] = number
    said = (
        rf"model of critic cannot compute: model\.layers\.1\.mlp\.up_proj\.weight holds {number:g}"
    )
    with pytest.raises(ConfigError, match=said.replace("+", r"\+")):
        check_soundness("critic", model)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"num_key_value_heads": 3}, "RuntimeError"),
        ({"head_dim": 3}, "RuntimeError"),
        ({"num_hidden_layers": 0}, "it has no layers"),
        ({"num_hidden_layers": -1}, "it has no layers"),
    ],
)
def test_a_shape_that_does_not_hold_together_is_refused(make_source, keys, said):
    model = load_policy(make_source("llama", dtype="float32", **keys))
    with pytest.raises(ConfigError, match=f"model of actor does not work: {said}") as caught:
        check_soundness("actor", model)
    assert "numbers of layers and heads" in caught.value.do


def test_damaged_rotary_frequencies_are_named(make_source):
    """Attention on CPUs would turn them into zeros without a word."""
    model = load_policy(make_source("llama", dtype="float32", rope_theta=-1))
    assert model(torch.arange(4)[None]).logits.isfinite().all()
    with pytest.raises(ConfigError, match=r"rotary_emb\.inv_freq holds nan"):
        check_soundness("actor", model)
