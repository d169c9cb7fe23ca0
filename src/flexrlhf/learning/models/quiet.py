"""Keeps the load reports, warnings and progress bars of transformers away from the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silences transformers inside the block; what it would have said is checked by the caller."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    had_progress_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_progress_bars:
            logging.enable_progress_bar()
