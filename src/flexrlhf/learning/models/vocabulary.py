"""Whether roles that read the same tokens mean the same text by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from torch import nn

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.heads import pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_vocabularies(tokenizers: Mapping[str, PreTrainedTokenizerBase]) -> None:
    """Checks that the tokenizers of all roles give every token the same id.

    Args:
        tokenizers: the tokenizer of each role that sees the samples' tokens.

    Raises:
        ConfigError: two vocabularies differ; names the roles, their sizes and the first token that
            differs, in the order of ids.
    """
    (first_role, first), *others = (
        (role, tokenizer.get_vocab()) for role, tokenizer in tokenizers.items()
    )
    for role, vocabulary in others:
        if vocabulary != first:
            difference = _first_difference(first_role, first, role, vocabulary)
            raise ConfigError(
                f"{first_role} and {role} have different vocabularies, of {len(first)} and "
                f"{len(vocabulary)} tokens: {difference}.",
                "Roles pass tokens to each other, so every token must have one id in all of them.",
                "Choose models of one family, or reward functions instead of a reward model.",
            )


def check_vocabulary_fits(role: str, model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
    """Checks that the model has an embedding for every token; more than that is normal padding.

    Raises:
        ConfigError: the tokenizer has ids beyond the model's embedding.
    """
    num_embeddings = cast("nn.Embedding", pretrained(model).get_input_embeddings()).num_embeddings
    highest = max(tokenizer.get_vocab().values())
    if highest >= num_embeddings:
        raise ConfigError(
            f"The tokenizer of {role} has ids up to {highest}, "
            f"its model has {num_embeddings} embeddings.",
            "The model needs an embedding for every id.",
            "Give the tokenizer of the model, or raise vocab_size of the architecture.",
        )


def _first_difference(
    one_role: str, one: Mapping[str, int], other_role: str, other: Mapping[str, int]
) -> str:
    """Describes the token with the lowest id that the vocabularies do not share."""
    differing = {token for token, _ in one.items() ^ other.items()}
    last = len(one)
    token = min(differing, key=lambda token: (min(_ids(token, one, other)), one.get(token, last)))
    return (
        f"{token!r} is {one.get(token, 'absent')} in {one_role} "
        f"and {other.get(token, 'absent')} in {other_role}"
    )


def _ids(token: str, *vocabularies: Mapping[str, int]) -> list[int]:
    return [vocabulary[token] for vocabulary in vocabularies if token in vocabulary]
