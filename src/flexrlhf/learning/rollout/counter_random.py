"""Random numbers that are a function of (seed, sample, position), by Philox4x32-10.

No state is carried from one draw to the next, so a sample's numbers do not depend on its batch, its
worker, or on what was drawn before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_NUM_ROUNDS = 10
_STEPS_AHEAD = 16
"""Tokens for which numbers are computed at one time: a call costs as much for one as for many."""


def philox(counters: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Philox4x32-10: encrypts 128-bit counters into 128 random bits.

    Args:
        counters: [4, ...], 32-bit words in 64-bit integers.
        key: two 32-bit words.

    Returns:
        [4, ...], 32-bit words in 64-bit integers.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.
    """
    word, half = np.uint64(_WORD), np.uint64(32)
    first, second, third, fourth = counters
    for turn in range(_NUM_ROUNDS):
        # Products of 32-bit words: the 64-bit result holds both halves.
        product_0 = _MULTIPLIERS[0] * first
        product_1 = _MULTIPLIERS[1] * third
        key_0, key_1 = (np.uint64((key[i] + turn * _KEY_STEPS[i]) & _WORD) for i in range(2))
        first, second, third, fourth = (
            (product_1 >> half) ^ second ^ key_0,
            product_1 & word,
            (product_0 >> half) ^ fourth ^ key_1,
            product_0 & word,
        )
    return np.stack([first, second, third, fourth])


def uniforms(seed: int, sample_ids: ArrayLike, positions: ArrayLike) -> NDArray[np.float64]:
    """One uniform number per sample, for the token at a position of its response.

    Key: the seed's low 64 bits. Counter: sample id (two words), position, zero.

    Args:
        seed: of the run; any integer.
        sample_ids: from 0 to 2^64 - 1.
        positions: 0 for a response's first token; one for all samples, or one each.

    Returns:
        float64 [B], multiples of 2^-53 strictly between 0 and 1.
    """
    ids_B = np.asarray(sample_ids, dtype=np.uint64)
    counters = np.zeros((4, len(ids_B)), dtype=np.uint64)
    counters[0] = ids_B & np.uint64(_WORD)
    counters[1] = ids_B >> np.uint64(32)
    counters[2] = positions
    high, low, _, _ = philox(counters, (seed & _WORD, (seed >> 32) & _WORD))
    # 52 bits and a half: 53 bits and a half would round up to 1.
    bits_B = ((high >> np.uint64(6)) << np.uint64(26)) | (low >> np.uint64(6))
    return (bits_B.astype(np.float64) + 0.5) * 2.0**-52


class UpcomingUniforms:
    """The numbers of each row's next tokens, computed for several tokens at one time.

    Args:
        seed: of the run.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numbers_SB = np.zeros((0, 0))
        """Of the tokens to come: step by step, for all rows."""

    def take(
        self, sample_ids: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Returns one number per row, as `uniforms` does.

        Args:
            sample_ids: of the rows, [B]; the same as last time, after `keep`, or more.
            positions: of each row's next token, one more than last time.
        """
        num_rows = len(sample_ids)
        if not len(self._numbers_SB) or self._numbers_SB.shape[1] != num_rows:
            steps_S1 = np.arange(_STEPS_AHEAD)[:, None]
            ids, places = np.broadcast_arrays(sample_ids, positions + steps_S1)
            numbers = uniforms(self._seed, ids.ravel(), places.ravel())
            self._numbers_SB = numbers.reshape(_STEPS_AHEAD, num_rows)
        first, self._numbers_SB = self._numbers_SB[0], self._numbers_SB[1:]
        return first

    def keep(self, rows: NDArray[np.int64]) -> None:
        """Makes old row `rows[i]` the new row i; the others are gone."""
        self._numbers_SB = self._numbers_SB[:, rows]
