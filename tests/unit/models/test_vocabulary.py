"""Roles that pass tokens to each other must mean the same by them."""

from __future__ import annotations

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.heads import SharedActorCritic
from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.vocabulary import check_vocabularies, check_vocabulary_fits


def test_equal_vocabularies_pass(make_tokenizer):
    check_vocabularies({"actor": make_tokenizer(), "reward": make_tokenizer()})


def test_missing_token_is_named(make_tokenizer):
    with pytest.raises(ConfigError) as caught:
        check_vocabularies(
            {
                "actor": make_tokenizer(),
                "critic": make_tokenizer(),
                "reward": make_tokenizer(("red", "green")),
            }
        )
    assert "actor and reward have different vocabularies, of 5 and 4 tokens" in caught.value.wrong
    assert "'blue' is 4 in actor and absent in reward" in caught.value.wrong


def test_first_token_with_another_id_is_named(make_tokenizer):
    with pytest.raises(ConfigError, match="'green' is 3 in actor and 4 in reward"):
        check_vocabularies(
            {
                "actor": make_tokenizer(("red", "green", "blue")),
                "reward": make_tokenizer(("red", "blue", "green")),
            }
        )


def test_model_may_have_more_embeddings_than_tokens(make_source, make_tokenizer):
    model = load_policy(make_source("llama"))
    check_vocabulary_fits("actor", model, make_tokenizer())
    check_vocabulary_fits("actor", SharedActorCritic(model), make_tokenizer())


def test_model_with_too_few_embeddings_is_refused(make_source, make_tokenizer):
    model = load_policy(make_source("llama", vocab_size=4))
    with pytest.raises(ConfigError, match="ids up to 4, its model has 4 embeddings"):
        check_vocabulary_fits("actor", model, make_tokenizer())
