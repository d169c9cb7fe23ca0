"""The order in which a data set is read: shuffled per epoch, and resumable from one number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flexrlhf.core.errors import DataError

_WORD = 2**64


class SeededOrder:
    """An endless order over `num_items` rows, each epoch shuffled anew.

    A position counts the rows drawn since the start of the run, so it is all that a checkpoint has
    to keep. An epoch's order comes from a counter-based generator keyed by (seed, epoch): any
    position is reached without replaying those before it.

    Args:
        num_items: rows in the data set, at least 1.
        seed: any integer; taken modulo 2^64.

    Raises:
        DataError: there are no rows.

    Source: ours; generator Philox4x64, Salmon et al. 2011.
    """

    def __init__(self, num_items: int, seed: int) -> None:
        if num_items < 1:
            raise DataError(
                f"A data set of {num_items} rows has no order.",
                "At least one row is needed.",
                "Check the data set's path, and whether rows were dropped for their length.",
            )
        self.num_items = num_items
        self.seed = seed
        self._epoch = -1
        self._epoch_order: NDArray[np.intp] = np.empty(0, dtype=np.intp)

    def take(self, position: int, count: int) -> list[int]:
        """Returns the rows at `position`, `position + 1` and so on, `count` of them.

        Within an epoch no row comes twice.
        """
        taken: list[int] = []
        while len(taken) < count:
            epoch, offset = divmod(position + len(taken), self.num_items)
            rows = self._order_of(epoch)[offset : offset + count - len(taken)]
            taken.extend(rows.tolist())
        return taken

    def _order_of(self, epoch: int) -> NDArray[np.intp]:
        """Returns the row numbers of `epoch`; the last epoch asked for is kept."""
        if epoch != self._epoch:
            generator = np.random.Philox(key=np.array([self.seed % _WORD, epoch], dtype=np.uint64))
            # NumPy promises the raw words for ever, but not what its shuffle makes of them.
            self._epoch_order = np.argsort(generator.random_raw(self.num_items), kind="stable")
            self._epoch = epoch
        return self._epoch_order
