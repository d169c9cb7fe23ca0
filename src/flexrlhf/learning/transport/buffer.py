"""Experience between generation and training, never more than there is room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from flexrlhf.core.errors import TransferLost
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.transport.parcel import Parcel, ParcelLike
from flexrlhf.learning.transport.samples import samples_from_parcel, samples_to_parcel

GENERATED_FIELDS: Final = ("logprobs", "sampling_logprobs")
"""Numbers per token that come with an answer; all others are scores."""
_SAMPLES: Final = "samples/"
_SCORES: Final = "scores/"


@dataclass(slots=True)
class _Part:
    """One part of a rollout, as far as it is here."""

    samples: dict[int, Sample] = field(default_factory=dict[int, Sample])
    made: list[int] | None = None
    """Ids of those that were generated here; None: none were to be."""
    scores: dict[str, ParcelLike] = field(default_factory=dict[str, ParcelLike])
    """What roles said here, by role."""


class ExperienceBuffer:
    """The samples of the newest iterations, by part, and what was said of them here.

    When the first of an iteration come, those of the iteration `num_iterations` before it are let
    go: weights that were trained on them have generated the new ones. Of an iteration any part may
    hold any ids, and may come in several pieces. Whoever shares a buffer between threads locks it.

    Args:
        num_iterations: most iterations of which samples are held.
        samples_per_iteration: most samples of each.
    """

    def __init__(self, num_iterations: int, samples_per_iteration: int) -> None:
        if min(num_iterations, samples_per_iteration) < 1:
            raise ValueError(
                f"A buffer holds at least one sample of one iteration, not "
                f"{samples_per_iteration} of {num_iterations}."
            )
        self.num_iterations = num_iterations
        self.samples_per_iteration = samples_per_iteration
        self._parts: dict[tuple[int, int], _Part] = {}

    def add(
        self, iteration: int, part: int, samples: Iterable[Sample], *, made_here: bool = False
    ) -> None:
        """Adds samples to a part; those that are here already stay.

        Args:
            iteration: of a run.
            part: of the iteration.
            samples: any of the part.
            made_here: they were generated here, and others may ask for them.

        Raises:
            TransferLost: there is no room.
        """
        self._make_room(iteration)
        held = self._parts.setdefault((iteration, part), _Part())
        if made_here and held.made is None:
            held.made = []
        new = [sample for sample in samples if sample.sample_id not in held.samples]
        if self.num_by_iteration()[iteration] + len(new) > self.samples_per_iteration:
            raise self._full(iteration, part)
        held.samples.update((sample.sample_id, sample) for sample in new)
        if held.made is not None and made_here:
            held.made += [sample.sample_id for sample in new]

    def add_scores(self, iteration: int, part: int, role: str, scores: ParcelLike) -> None:
        """Keeps what a role said here of samples of a part.

        Raises:
            TransferLost: the iteration is too old.
        """
        self._make_room(iteration)
        self._parts.setdefault((iteration, part), _Part()).scores[role] = scores

    def samples(self, iteration: int, part: int) -> Mapping[int, Sample]:
        """Returns the samples of a part that are here, by id."""
        held = self._parts.get((iteration, part))
        return {} if held is None else held.samples

    def made(self, iteration: int, part: int) -> list[int]:
        """Returns the ids of a part that were generated here.

        Raises:
            KeyError: nothing was generated here.
        """
        made = self._parts[iteration, part].made
        if made is None:
            raise KeyError((iteration, part))
        return list(made)

    def scores(self, iteration: int, part: int, role: str) -> ParcelLike:
        """Returns what a role said here of a part.

        Raises:
            KeyError: it said nothing here.
        """
        return self._parts[iteration, part].scores[role]

    def release(self, iteration: int) -> None:
        """Lets go of an iteration."""
        for held in [key for key in self._parts if key[0] == iteration]:
            del self._parts[held]

    def num_by_iteration(self) -> Counter[int]:
        """Counts the samples by iteration."""
        counts: Counter[int] = Counter()
        for (iteration, _), held in self._parts.items():
            counts[iteration] += len(held.samples)
        return +counts  # without those of which only scores are here

    def state(
        self, made: Collection[tuple[int, int]], scored: Collection[tuple[int, int, str]]
    ) -> Parcel:
        """Returns what was made and said here, as JSON and tensors for a checkpoint.

        Args:
            made: iteration and part of what was generated.
            scored: iteration, part and role of what was said.
        """
        rows: list[list[int]] = []
        samples: list[Sample] = []
        said: list[tuple[int, int, str]] = []
        for (iteration, part), held in sorted(self._parts.items()):
            if (iteration, part) in made and held.made is not None:
                rows.append([iteration, part, len(held.made)])
                samples += [held.samples[sample_id] for sample_id in held.made]
            roles = [role for role in held.scores if (iteration, part, role) in scored]
            said += [(iteration, part, role) for role in roles]
        packed = samples_to_parcel(samples, GENERATED_FIELDS)
        tensors = {_SAMPLES + name: tensor for name, tensor in packed.tensors.items()}
        scores: list[dict[str, Any]] = []
        for number, (iteration, part, role) in enumerate(said):
            parcel = self.scores(iteration, part, role)
            scores.append({"of": [iteration, part, role], "header": dict(parcel.header)})
            prefix = f"{_SCORES}{number}/"
            tensors |= {prefix + name: tensor for name, tensor in parcel.tensors.items()}
        return Parcel({"made": rows, "samples": packed.header, "scores": scores}, tensors)

    def restore(self, state: ParcelLike, prompt_of: Callable[[int], Prompt]) -> None:
        """Puts back what `state` returned in place of what is held.

        Args:
            state: its header and tensors.
            prompt_of: the prompt that a sample id answers.

        Raises:
            LookupError, TypeError or ValueError: it is nothing that `state` returns.
        """
        self._parts = {}
        packed = Parcel(state.header["samples"], _under(_SAMPLES, state.tensors))
        samples = iter(samples_from_parcel(packed, prompt_of))
        for iteration, part, count in state.header["made"]:
            self.add(iteration, part, [next(samples) for _ in range(count)], made_here=True)
        for number, row in enumerate(state.header["scores"]):
            iteration, part, role = row["of"]
            tensors = _under(f"{_SCORES}{number}/", state.tensors)
            self.add_scores(iteration, part, role, Parcel(row["header"], tensors))

    def _make_room(self, iteration: int) -> None:
        """Lets go of iterations that are trained on by the time when this one comes."""
        held = {key[0] for key in self._parts}
        newest = max(held, default=iteration)
        if iteration <= newest - self.num_iterations:
            raise TransferLost(
                f"Samples of iteration {iteration + 1} came after those of iteration {newest + 1}.",
                f"A worker holds samples of {self.num_iterations} iterations: "
                "1 + weights.max_staleness.",
                "This is a fault of the program: please report it with the run's log.",
            )
        for old in held:
            if old <= iteration - self.num_iterations:
                self.release(old)

    def _full(self, iteration: int, part: int) -> TransferLost:
        return TransferLost(
            f"Part {part} of iteration {iteration + 1} has no room: "
            f"{self.samples_per_iteration} samples of this iteration are here.",
            f"A worker holds {self.samples_per_iteration} samples of each of "
            f"{self.num_iterations} iterations.",
            "This is a fault of the program: please report it with the run's log.",
        )


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
