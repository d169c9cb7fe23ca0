"""Slots keep their tokens while the cache grows and its rows move."""

from __future__ import annotations

import pytest
import torch

from flexrlhf.learning.models.families import CacheShape
from flexrlhf.learning.rollout.kv_cache import KVCache

SHAPE = CacheShape(num_layers=2, num_kv_heads=3, head_width=4)


both_ways = pytest.mark.parametrize("transposes_keys", [False, True])


def filled(
    lengths: list[int], growth: int, *, transposes_keys: bool
) -> tuple[KVCache, list[list[torch.Tensor]]]:
    """A cache of prompts, and per layer the keys [KV heads, T, K] that each slot must hold."""
    generator = torch.Generator().manual_seed(1)
    cache = KVCache(
        SHAPE,
        growth=growth,
        dtype=torch.float32,
        device=torch.device("cpu"),
        transposes_keys=transposes_keys,
    )
    held: list[list[torch.Tensor]] = [[], []]
    add(cache, held, lengths, generator)
    return cache, held


def add(
    cache: KVCache, held: list[list[torch.Tensor]], lengths: list[int], generator: torch.Generator
) -> None:
    rows = cache.add(lengths)
    for layer in range(2):
        keys = torch.randn(len(lengths), 3, max(lengths), 4, generator=generator)
        cache.write_prompts(layer, rows, keys, -keys)
        held[layer] += [keys[row, :, :length] for row, length in enumerate(lengths)]


def extend(cache: KVCache, held: list[list[torch.Tensor]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    cache.extend()
    for layer, slots in enumerate(held):
        keys = torch.randn(len(slots), 3, 4, generator=generator)
        cache.write(layer, keys, -keys)
        held[layer] = [torch.cat([old, keys[row][:, None]], dim=1) for row, old in enumerate(slots)]


def check(cache: KVCache, held: list[list[torch.Tensor]]) -> None:
    for layer, slots in enumerate(held):
        keys, values = cache.read(layer)
        assert keys.shape == (len(slots), 3, max(slot.shape[1] for slot in slots), 4)
        for row, expected in enumerate(slots):
            assert torch.equal(keys[row, :, : expected.shape[1]], expected)
            assert torch.equal(values[row, :, : expected.shape[1]], -expected)
        assert torch.isfinite(keys).all()


@both_ways
def test_tokens_follow_each_slots_own_prompt(*, transposes_keys: bool) -> None:
    cache, held = filled([2, 5, 1], growth=8, transposes_keys=transposes_keys)
    for seed in range(4):
        extend(cache, held, seed)
    assert cache.lengths.tolist() == [6, 9, 5]
    check(cache, held)


@both_ways
def test_growing_keeps_what_the_slots_hold(*, transposes_keys: bool) -> None:
    cache, held = filled([1, 4], growth=2, transposes_keys=transposes_keys)
    for seed in range(7):
        extend(cache, held, seed)
    check(cache, held)


@both_ways
def test_rows_move_and_go_on_growing(*, transposes_keys: bool) -> None:
    cache, held = filled([3, 1, 2, 6, 4], growth=3, transposes_keys=transposes_keys)
    extend(cache, held, 0)
    for rows in ([0, 4, 2], [2, 1]):
        cache.keep(torch.tensor(rows))
        held = [[slots[row] for row in rows] for slots in held]
        check(cache, held)
        for seed in range(4):
            extend(cache, held, seed)
        check(cache, held)


@both_ways
def test_slots_begin_behind_those_that_are_left(*, transposes_keys: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    cache, held = filled([3, 1, 2], growth=2, transposes_keys=transposes_keys)
    for seed in range(3):
        extend(cache, held, seed)
    cache.keep(torch.tensor([2, 1]))
    held = [[slots[row] for row in (2, 1)] for slots in held]
    for lengths in ([4], [1, 9, 2]):
        add(cache, held, lengths, generator)
        check(cache, held)
        for seed in range(3):
            extend(cache, held, seed)
        check(cache, held)


@both_ways
def test_a_prompt_is_repeated_in_other_rows(*, transposes_keys: bool) -> None:
    cache, held = filled([3, 2], growth=2, transposes_keys=transposes_keys)
    prompt = cache.held(0, 0, 3)
    extend(cache, held, 0)
    rows = cache.add([3, 3])
    cache.repeat_prompt(rows, prompt)
    held = [[*slots, slots[0][:, :3], slots[0][:, :3]] for slots in held]
    check(cache, held)


@both_ways
def test_sequences_of_one_length_keep_it_and_may_part(*, transposes_keys: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    cache, held = filled([3, 3, 3], growth=2, transposes_keys=transposes_keys)
    for seed in range(3):
        extend(cache, held, seed)
        check(cache, held)
    assert cache.extend().tolist() == [6]
    cache, held = filled([3, 3], growth=2, transposes_keys=transposes_keys)
    add(cache, held, [5], generator)
    for seed in range(3):
        extend(cache, held, seed)
    check(cache, held)
    assert cache.extend().tolist() == [6, 6, 8]


@both_ways
def test_runs_of_unlike_lengths_are_added_and_partly_forgotten(*, transposes_keys: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    cache, held = filled([3, 1, 2], growth=2, transposes_keys=transposes_keys)
    for counts, surplus in (([2, 1, 4], [0, 0, 3]), ([1, 0, 3], [1, 0, 1]), ([5, 5, 5], [5, 1, 0])):
        before = cache.lengths.tolist()
        places = cache.extend_by(torch.tensor(counts))
        expected = [
            (row, start + place)
            for row, (start, count) in enumerate(zip(before, counts, strict=True))
            for place in range(count)
        ]
        assert list(zip(*(part.tolist() for part in places), strict=True)) == expected
        for layer, slots in enumerate(held):
            keys = torch.randn(sum(counts), 3, 4, generator=generator)
            cache.write_at(layer, places, keys, -keys)
            runs = keys.transpose(0, 1).split(counts, dim=1)
            grown = [torch.cat(pair, dim=1) for pair in zip(slots, runs, strict=True)]
            held[layer] = [
                slot[:, : slot.shape[1] - most] for slot, most in zip(grown, surplus, strict=True)
            ]
        cache.shorten(torch.tensor(surplus))
        check(cache, held)
        extend(cache, held, sum(counts))
        check(cache, held)
