"""What libraries raise over a user's files, turned into one complaint about the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from flexrlhf.core.errors import ConfigError, FlexError
from flexrlhf.learning.models.quiet import quiet_transformers

_MOST_LETTERS: Final = 300


@contextmanager
def complaining(complaint: Callable[[str], ConfigError]) -> Iterator[None]:
    """Runs calls of transformers that read a user's file or mapping, and silences them.

    A damaged config makes transformers raise anything: KeyError, ZeroDivisionError, AttributeError;
    the tokenizers package raises plain `Exception`. Nothing but the file can be wrong in the block,
    so all of it is caught.

    Args:
        complaint: makes the error for the user from what the library said.

    Raises:
        ConfigError: the complaint.
    """
    try:
        with quiet_transformers():
            yield
    except FlexError:
        raise
    except Exception as error:
        raise complaint(_said(error)) from error


def _said(error: Exception) -> str:
    """Returns the message in one line; with the error's type where it alone would be a riddle."""
    text = " ".join(str(error).split())
    if not isinstance(error, OSError | ValueError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
