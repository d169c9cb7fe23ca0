"""Every error that a user of the package may see.

    FlexError
    ├── ConfigError (ValueError)     the request itself is wrong: exit status 2, nothing was started
    │   └── DataError                a data file, a row or a reward function is wrong
    ├── PlanError                    no placement fits, or the asked one does not
    ├── ShapeError (ValueError)      tensors that belong together differ in shape
    ├── EngineMissing (ImportError)  an optional package is not installed
    ├── WorkerLost                   a worker stopped answering, or raised
    ├── StaleWeights                 an engine holds another weight version than the task needs
    ├── TransferLost                 what a peer was asked for did not come, or not in time
    ├── WeightMismatch               weights were changed on their way
    ├── CheckpointError              a checkpoint is damaged, does not fit, or cannot be written
    └── RunFailed                    the run cannot go on (a loss that is not finite, a full disk)

A message has three parts: what is wrong, what would be right, what to do. All of them pickle, since
they cross process borders.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FlexError(Exception):
    """An error caused by the user's request or by the world, never by our own mistake.

    Args:
        wrong: what is wrong, with the values.
        right: what would be right.
        do: what to do about it.
    """

    def __init__(self, wrong: str, right: str = "", do: str = "") -> None:
        super().__init__(wrong, right, do)
        self.wrong = wrong
        self.right = right
        self.do = do

    def __str__(self) -> str:
        return "\n  ".join(part for part in (self.wrong, self.right, self.do) if part)


class ConfigError(FlexError, ValueError):
    """The request is wrong; nothing was started."""


class DataError(ConfigError):
    """A data file, one of its rows, or a reward function is wrong."""


class PlanError(FlexError):
    """No placement fits, or the one asked for does not."""


class ShapeError(FlexError, ValueError):
    """Tensors that belong together differ in shape."""


class EngineMissing(FlexError, ImportError):
    """An optional package that this run needs is not installed."""


class WorkerLost(FlexError):
    """A worker raised, died, or did not answer before its deadline."""


class StaleWeights(FlexError):
    """An engine holds another weight version than the task asks for."""


class TransferLost(FlexError):
    """A peer is gone, refused, or did not send before the deadline what it was asked for."""


class WeightMismatch(FlexError):
    """Weights that were sent and weights that are installed differ; the run must stop."""


class CheckpointError(FlexError):
    """A checkpoint is damaged, belongs to another run, or cannot be written."""


class RunFailed(FlexError):
    """The run cannot go on; what was finished is saved."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ` Did you mean 'x'?`, or nothing when no known name is close to `name`."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else ""
