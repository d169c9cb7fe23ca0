"""Samples that are scored and not yet trained on, never more than there is room for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from flexrlhf.core.errors import TransferLost
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.transport.parcel import Parcel, ParcelLike
from flexrlhf.learning.transport.samples import samples_from_parcel, samples_to_parcel

_Part = tuple[int, int]
"""Iteration, and number of the part within it."""


class ExperienceBuffer:
    """Holds samples by iteration and part between scoring and training, for several threads.

    Which samples are admitted, and how stale they may be, is decided elsewhere; here they are
    stored and counted.

    Args:
        capacity_samples: most samples that are held at once.
    """

    def __init__(self, capacity_samples: int) -> None:
        if capacity_samples < 1:
            raise ValueError(f"A buffer holds at least one sample, not {capacity_samples}.")
        self.capacity_samples = capacity_samples
        self._parts: dict[_Part, list[Sample]] = {}
        self._changed = threading.Condition()
        self._is_closed = False

    def put(
        self, iteration: int, part: int, samples: Sequence[Sample], *, deadline_s: float
    ) -> None:
        """Stores one part of an iteration, once there is room.

        Raises:
            ValueError: the part is here already, or never has room.
            TransferLost: there was no room before the deadline, or the buffer was closed.
        """
        if len(samples) > self.capacity_samples:
            raise ValueError(
                f"A part of {len(samples)} samples exceeds the buffer of {self.capacity_samples}."
            )
        with self._changed:
            self._wait(
                lambda: self.num_samples + len(samples) <= self.capacity_samples,
                deadline_s,
                f"Part {part} of iteration {iteration}, {len(samples)} samples, finds no room",
            )
            if (iteration, part) in self._parts:
                raise ValueError(f"Part {part} of iteration {iteration} is in the buffer already.")
            self._parts[iteration, part] = list(samples)
            self._changed.notify_all()

    def get(self, iteration: int, part: int, *, deadline_s: float) -> list[Sample]:
        """Returns the samples of a part, once they are here; they stay until released.

        Raises:
            TransferLost: they did not come before the deadline, or the buffer was closed.
        """
        with self._changed:
            self._wait(
                lambda: (iteration, part) in self._parts,
                deadline_s,
                f"Part {part} of iteration {iteration} did not come",
            )
            return list(self._parts[iteration, part])

    def release(self, iteration: int, part: int | None = None) -> None:
        """Lets go of a part, or of all parts of an iteration, and thereby makes room."""
        with self._changed:
            for held in [key for key in self._parts if key[0] == iteration]:
                if part is None or held[1] == part:
                    del self._parts[held]
            self._changed.notify_all()

    @property
    def num_samples(self) -> int:
        """Samples held now."""
        with self._changed:
            return sum(map(len, self._parts.values()))

    def parts(self, iteration: int) -> tuple[int, ...]:
        """Returns the parts of an iteration that are here, in order."""
        with self._changed:
            return tuple(sorted(part for held, part in self._parts if held == iteration))

    def num_by_version(self) -> dict[int, int]:
        """Counts the samples by the version of the weights that wrote them, oldest first."""
        with self._changed:
            counts = Counter(
                sample.weight_version for held in self._parts.values() for sample in held
            )
        return dict(sorted(counts.items()))

    def num_by_staleness(self, version: int) -> dict[int, int]:
        """Counts the samples by how many versions behind `version` their weights were."""
        counts = self.num_by_version()
        return {version - each: count for each, count in sorted(counts.items(), reverse=True)}

    def state(self) -> Parcel:
        """Returns all that is held, as JSON and tensors for a checkpoint."""
        with self._changed:
            parts = sorted(self._parts.items())
        packed = samples_to_parcel([sample for _, held in parts for sample in held])
        rows = [[iteration, part, len(held)] for (iteration, part), held in parts]
        return Parcel({"parts": rows, "samples": packed.header}, packed.tensors)

    def restore(self, state: ParcelLike, prompt_of: Callable[[int], Prompt]) -> None:
        """Puts back what `state` returned in place of what is held.

        Args:
            state: its header and tensors.
            prompt_of: the prompt that a sample id answers.
        """
        packed = Parcel(state.header["samples"], state.tensors)
        samples = iter(samples_from_parcel(packed, prompt_of))
        parts = {
            (iteration, part): [next(samples) for _ in range(count)]
            for iteration, part, count in state.header["parts"]
        }
        with self._changed:
            self._parts = parts
            self._changed.notify_all()

    def close(self) -> None:
        """Wakes everybody who waits, with an error; what is held can still be read."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _wait(self, is_so: Callable[[], bool], deadline_s: float, otherwise: str) -> None:
        """Waits, with the lock held, until something is so."""
        self._changed.wait_for(lambda: self._is_closed or is_so(), deadline_s)
        if is_so():
            return
        iterations = sorted({iteration for iteration, _ in self._parts})
        why = "the buffer was closed" if self._is_closed else f"{deadline_s:g} s are over"
        raise TransferLost(
            f"{otherwise}: {why}.",
            f"The buffer holds {self.num_samples} of {self.capacity_samples} samples, of "
            f"iterations {', '.join(map(str, iterations)) or 'none'}.",
            "Look in the log for the worker that was to fill or to empty it.",
        )
