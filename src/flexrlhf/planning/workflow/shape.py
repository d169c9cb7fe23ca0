"""How many pieces one iteration is cut into, and how old the weights may be that generate."""

from __future__ import annotations

from dataclasses import dataclass

from flexrlhf.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class IterationShape:
    """The cuts of one iteration, known before any length is.

    Version v of the weights is what v iterations of training made. Samples of iteration k that
    version v generated are k - v iterations stale.

    Raises:
        ConfigError: a count is out of range, or the two of `weights` contradict each other.
    """

    num_samples: int
    rollout_micro_batches: int = 1
    """Parts that are generated and scored on their own."""
    mini_batches: int = 1
    """Optimiser steps per epoch and role."""
    micro_batches_per_mini_batch: int = 1
    """Bins into which a mini-batch is packed by tokens: an upper bound, a bin may stay empty."""
    epochs: int = 1
    sync_every: int = 1
    """Iterations from one install of new weights to the next."""
    max_staleness: int = 0
    """Iterations by which the generating weights may lag; 0 is synchronous."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("num_samples", 1, None),
            ("rollout_micro_batches", 1, self.num_samples),
            ("mini_batches", 1, self.num_samples),
            ("micro_batches_per_mini_batch", 1, None),
            ("epochs", 1, None),
            ("sync_every", 1, None),
            ("max_staleness", 0, None),
        ):
            value: int = getattr(self, name)
            if value < least or (most is not None and value > most):
                upper = "" if most is None else f" and at most {most}, the number of samples"
                raise ConfigError(
                    f"{name} = {value}.",
                    f"It is at least {least}{upper}.",
                    "Change the key it comes from.",
                )
        if self.max_staleness < self.sync_every - 1:
            raise ConfigError(
                f"weights.sync_every = {self.sync_every} makes samples up to "
                f"{self.sync_every - 1} iterations stale, but weights.max_staleness = "
                f"{self.max_staleness}.",
                "max_staleness is at least sync_every - 1.",
                f"Set weights.max_staleness={self.sync_every - 1}, or weights.sync_every=1.",
            )

    @property
    def num_in_flight(self) -> int:
        """Iterations to keep submitted, so that timing cannot change which version generates.

        One is enough when synchronous. Otherwise the iteration after those that staleness lets
        run must be known too, lest an install overtake it: it needs the version installed before.
        """
        return 1 if self.max_staleness == 0 else self.max_staleness + 2

    def generation_version(self, iteration: int) -> int:
        """Returns the oldest version that may generate an iteration.

        It lags by at most `max_staleness`, and only every `sync_every`-th version is installed.
        """
        oldest = max(0, iteration - self.max_staleness)
        return -(-oldest // self.sync_every) * self.sync_every

    def has_sync(self, iteration: int) -> bool:
        """Whether new weights are installed at the end of an iteration."""
        return (iteration + 1) % self.sync_every == 0
