"""What tests of every kind may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from process_pool import ProcessPool


@pytest.fixture(scope="session")
def process_pool() -> Iterator[ProcessPool]:
    """Four processes that form a world; `process_pool.run(function, **arguments)` uses them."""
    pool = ProcessPool(4)
    yield pool
    pool.close()
