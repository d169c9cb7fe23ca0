"""Philox against the known answers of Random123, and the numbers made from it."""

from __future__ import annotations

import numpy as np
import pytest

from flexrlhf.learning.rollout.counter_random import UpcomingUniforms, philox, uniforms

# Random123 1.14, tests/kat_vectors: philox4x32, 10 rounds; counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter: str, key: str, result: str) -> None:
    key_0, key_1 = words(key)
    assert philox(np.array(words(counter), np.uint64), (key_0, key_1)).tolist() == words(result)


def test_philox_encrypts_every_column_by_itself() -> None:
    counters = np.array([words(counter) for counter, _, _ in KNOWN_ANSWERS], np.uint64).T
    together = philox(counters, (5, 6))
    for column in range(3):
        assert together[:, column].tolist() == philox(counters[:, column], (5, 6)).tolist()


def test_a_uniform_is_made_of_the_first_two_words() -> None:
    """Seed 0, sample 0, position 0: counter and key are zero, the first known answer."""
    bits = (0x6627E8D5 >> 6 << 26) | (0xE169C58D >> 6)
    assert uniforms(0, [0], 0).tolist() == [(bits + 0.5) / 2**52]


def test_a_sample_has_its_number_whatever_the_batch() -> None:
    ids = [7, 0, 2**63 + 1, 2**32, 12345]
    together = uniforms(3, ids, 41)
    assert together.tolist() == [uniforms(3, [one], 41)[0] for one in ids]
    assert uniforms(3, ids[::-1], 41).tolist() == together[::-1].tolist()


def test_seed_sample_and_position_all_matter() -> None:
    numbers = [
        uniforms(seed, [sample_id], position)[0]
        for seed in (0, 1, -1, 2**32)
        for sample_id in (0, 1, 2**32)
        for position in (0, 1)
    ]
    assert len(set(numbers)) == len(numbers)


def test_the_numbers_are_uniform_inside_the_open_interval() -> None:
    numbers = uniforms(1, np.arange(100_000), 3)
    assert 0 < numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    chi_squared = ((counts - 5000) ** 2 / 5000).sum()
    assert chi_squared < 43.8  # 19 degrees of freedom, 1 in 1000
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01


def test_the_largest_bits_stay_below_one() -> None:
    largest = float(2**52 - 1)
    assert (largest + 0.5) * 2.0**-52 < 1.0


def test_numbers_computed_ahead_are_those_of_each_position_while_rows_come_and_go() -> None:
    generator = np.random.default_rng(0)
    upcoming = UpcomingUniforms(5)
    ids, positions = np.arange(4), np.zeros(4, dtype=np.int64)
    for step in range(60):
        expected = [uniforms(5, [one], at)[0] for one, at in zip(ids, positions, strict=True)]
        assert upcoming.take(ids, positions).tolist() == expected
        positions = positions + 1
        if step % 3 == 0:
            rows = generator.permutation(len(ids))[: len(ids) - 1]
            upcoming.keep(rows)
            ids, positions = ids[rows], positions[rows]
        if (step % 3 == 0 and step % 2 == 0) or not len(ids):
            ids, positions = np.append(ids, 100 + step), np.append(positions, 0)
