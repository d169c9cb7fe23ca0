"""What is kept of sequences: which blocks, in what order they go, and what they hold."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flexrlhf.learning.models.families import CacheShape
from flexrlhf.learning.rollout.kept_prefixes import BLOCK_TOKENS, KeptPrefixes

SHAPE = CacheShape(num_layers=2, num_kv_heads=1, head_width=3)


def kept_prefixes(most_tokens: int) -> KeptPrefixes:
    return KeptPrefixes(
        SHAPE, most_tokens=most_tokens, dtype=torch.float64, device=torch.device("cpu")
    )


def keys_of(tokens: tuple[int, ...]) -> Callable[[int, int], Tensor]:
    """What a token's keys are depends on all tokens up to it, as in a model."""
    sums = [float(hash(tokens[: end + 1]) % 1_000_003) for end in range(len(tokens))]
    whole = torch.tensor(sums, dtype=torch.float64).view(1, 1, 1, -1, 1).expand(2, 2, 1, -1, 3)
    return lambda first, last: whole[:, :, :, first:last]


def text(*parts: int, length: int = BLOCK_TOKENS) -> tuple[int, ...]:
    """Each part is a whole block of one token."""
    return tuple(part for part in parts for _ in range(length))


def num_found(kept: KeptPrefixes, tokens: tuple[int, ...]) -> int:
    return len(kept.find((*tokens, 0)))


def test_sequences_that_begin_alike_share_blocks() -> None:
    kept = kept_prefixes(100 * BLOCK_TOKENS)
    kept.keep(text(1, 2, 3), keys_of(text(1, 2, 3)))
    kept.keep(text(1, 2, 4), keys_of(text(1, 2, 4)))
    assert kept.num_tokens == 4 * BLOCK_TOKENS
    assert num_found(kept, text(1, 2, 4, 5)) == 3
    assert num_found(kept, text(2, 3)) == 0
    assert torch.equal(
        kept.read(kept.find((*text(1, 2, 4), 9))), keys_of(text(1, 2, 4))(0, 3 * BLOCK_TOKENS)
    )


def test_the_last_token_of_a_prompt_is_always_read() -> None:
    kept = kept_prefixes(100 * BLOCK_TOKENS)
    kept.keep(text(1, 2), keys_of(text(1, 2)))
    assert len(kept.find(text(1, 2))) == 1


def test_what_was_used_longest_ago_goes_first_and_ends_before_beginnings() -> None:
    kept = kept_prefixes(4 * BLOCK_TOKENS)
    kept.keep(text(1, 2), keys_of(text(1, 2)))
    kept.keep(text(3, 4), keys_of(text(3, 4)))
    assert num_found(kept, text(1, 2)) == 2  # used again
    kept.keep(text(5), keys_of(text(5)))
    assert (num_found(kept, text(3, 4)), num_found(kept, text(1, 2))) == (1, 2)
    kept.keep(text(6), keys_of(text(6)))
    assert num_found(kept, text(5)) == 0
    assert (num_found(kept, text(3)), num_found(kept, text(6))) == (1, 1)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 5, 8, 40])
def test_what_is_found_is_what_was_kept_whatever_was_forgotten(num_blocks: int) -> None:
    draw = random.Random(num_blocks)
    kept, again = kept_prefixes(num_blocks * BLOCK_TOKENS), kept_prefixes(num_blocks * BLOCK_TOKENS)
    written: set[tuple[int, ...]] = set()
    hits = 0
    for _ in range(600):
        tokens = text(*(draw.randrange(3) for _ in range(draw.randrange(1, 6))))
        tokens = tokens[: len(tokens) - draw.randrange(BLOCK_TOKENS)]
        places = kept.find(tokens)
        assert places == again.find(tokens)
        if places:
            hits += 1
            end = len(places) * BLOCK_TOKENS
            assert tokens[:end] in written
            assert torch.equal(kept.read(places), keys_of(tokens)(0, end))
        for one in (kept, again):
            one.keep(tokens, keys_of(tokens))
        ends = range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)
        written.update(tokens[:end] for end in ends)
        assert kept.num_tokens <= num_blocks * BLOCK_TOKENS
    assert hits


def test_closed_it_holds_nothing_and_keeps_nothing() -> None:
    kept = kept_prefixes(8 * BLOCK_TOKENS)
    kept.keep(text(1, 2), keys_of(text(1, 2)))
    kept.close()
    kept.keep(text(1, 2), keys_of(text(1, 2)))
    assert kept.num_tokens == 0
    assert num_found(kept, text(1, 2)) == 0
