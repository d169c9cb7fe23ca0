"""Experience between workers: what this one made, served to its peers, and what it took from them.

A worker keeps what its tasks make and tells nobody; whoever needs it asks, directly, the workers
that have it. The samples of a part of a rollout are known by ids and lengths, so that every worker
of a role finds the same balanced share by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from flexrlhf.core.algorithm_specs import ScoreStep
from flexrlhf.core.errors import TransferLost
from flexrlhf.core.names import Role
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.transport.buffer import GENERATED_FIELDS, ExperienceBuffer
from flexrlhf.learning.transport.parcel import Parcel, ParcelLike
from flexrlhf.learning.transport.samples import samples_from_parcel, samples_to_parcel
from flexrlhf.learning.transport.scores import scores_to_parcel, write_scores
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.shares import balanced_shares

PREFIX: Final = "experience"
HELD_OUT: Final = -1
"""Stands for the iteration where held-out prompts are answered."""

Ask = Callable[[int, str, Mapping[str, Any]], Parcel]
"""Returns what the worker of a rank answers to a key and a query."""


class ExperienceExchange:
    """Samples of the iterations in flight on one worker.

    Args:
        device_map: who keeps what.
        rank: this worker.
        ask: asks another one.
        prompt_of: the prompt that a sample id answers.
        buffer: holds samples that are not trained on yet.
        held_out: holds answers to held-out prompts.
    """

    def __init__(
        self,
        device_map: DeviceMap,
        rank: int,
        ask: Ask,
        prompt_of: Callable[[int], Prompt],
        *,
        buffer: ExperienceBuffer,
        held_out: ExperienceBuffer,
    ) -> None:
        self._map = device_map
        self.rank = rank
        self._ask = ask
        self._prompt_of = prompt_of
        self._lock = threading.RLock()
        self._buffer = buffer
        self._held_out = held_out
        self._made: dict[tuple[int, int], dict[int, dict[int, int]]] = {}
        """Tokens of each sample by rank that made it and id, by iteration and part.

        Peers are asked once: while they generate the next part they are slow to answer.
        """
        self._shares: dict[tuple[int, int, Role], list[int]] = {}
        self._whole: dict[int, list[Sample]] = {}
        """Samples with advantages, by iteration."""

    def keep_generated(self, iteration: int, part: int, samples: Sequence[Sample]) -> None:
        """Keeps answers that were generated here, for this worker and its peers.

        Those of a part may come in several pieces.
        """
        with self._lock:
            self._in(iteration).add(iteration, part, samples, made_here=True)

    def keep_scores(
        self,
        iteration: int,
        part: int,
        role: Role,
        samples: Sequence[Sample],
        fields: Iterable[str],
    ) -> None:
        """Keeps what a role wrote here into the fields of these samples; without any, rewards."""
        scores = scores_to_parcel(samples, tuple(fields))
        with self._lock:
            self._in(iteration).add_scores(iteration, part, role, scores)

    def keep_whole(self, iteration: int, samples: list[Sample]) -> None:
        """Keeps a batch with its advantages."""
        with self._lock:
            self._whole[iteration] = samples

    def share(self, iteration: int, part: int, role: Role) -> list[Sample]:
        """Returns the samples of a part that this worker's replica of `role` scores."""
        key = (iteration, part, role)
        if key not in self._shares:
            made = self._made_of(iteration, part).values()
            lengths = {i: tokens for by_id in made for i, tokens in by_id.items()}
            ids = sorted(lengths)
            placement = self._map.plan.placement[role]
            speeds = self._map.replica_speeds(role)
            shares = balanced_shares([lengths[i] for i in ids], placement.data_parallel, speeds)
            share = shares[self._map.replica(role, self.rank)]
            self._shares[key] = [ids[place] for place in share]
        wanted = self._shares[key]
        self._take(iteration, part, wanted)
        with self._lock:
            held = self._in(iteration).samples(iteration, part)
            return [held[sample_id] for sample_id in wanted]

    def gather(self, iteration: int, num_parts: int, scored: Sequence[ScoreStep]) -> list[Sample]:
        """Returns all samples of an iteration with all scores, in the order of their ids."""
        samples: list[Sample] = []
        for part in range(num_parts):
            self.gather_part(iteration, part, scored)
            with self._lock:
                samples += self._buffer.samples(iteration, part).values()
        return sorted(samples, key=lambda sample: sample.sample_id)

    def gather_part(self, iteration: int, part: int, scored: Sequence[ScoreStep]) -> None:
        """Takes over all samples of a part and their scores, where they are not here already."""
        self._take(iteration, part, None)
        for step in scored:
            role = self._map.serving(step.role)
            query = {"iteration": iteration, "part": part, "role": role}
            for rank in self._map.scorers(role):
                scores = self._asked(rank, "scores", query)
                with self._lock:
                    write_scores(self._buffer.samples(iteration, part), scores)

    def whole(self, iteration: int) -> list[Sample]:
        """Returns the batch of an iteration with its advantages, from who made it if need be."""
        with self._lock:
            if iteration in self._whole:
                return self._whole[iteration]
        ranks = self._map.barrier_ranks
        source = ranks[self.rank % len(ranks)]
        parcel = self._ask(source, f"{PREFIX}/whole", {"iteration": iteration})
        samples = samples_from_parcel(parcel, self._prompt_of)
        self.keep_whole(iteration, samples)
        return samples

    def held(self) -> dict[int, int]:
        """Returns how many answers of each iteration are here, made or taken over."""
        with self._lock:
            return dict(self._buffer.num_by_iteration())

    def state(self, done: Iterable[Task]) -> Parcel:
        """Returns what was made here by tasks before a barrier, for a checkpoint."""
        made: set[tuple[int, int]] = set()
        scored: set[tuple[int, int, str]] = set()
        for task in done:
            if task.micro_batch is not None and task.operation == "generate":
                made.add((task.iteration, task.micro_batch))
            elif task.micro_batch is not None and task.role is not None:
                scored.add((task.iteration, task.micro_batch, task.role))
        with self._lock:
            return self._buffer.state(made, scored)

    def restore(self, state: ParcelLike) -> None:
        """Puts back what `state` returned.

        Raises:
            LookupError, TypeError, ValueError or RuntimeError: it is nothing of the kind.
        """
        with self._lock:
            self._buffer.restore(state, self._prompt_of)

    def forget(self, iteration: int) -> None:
        """Drops everything of an iteration."""
        with self._lock:
            self._whole.pop(iteration, None)
            self._in(iteration).release(iteration)
            for key in [key for key in self._shares if key[0] == iteration]:
                del self._shares[key]
            for key in [key for key in self._made if key[0] == iteration]:
                del self._made[key]

    def handle(self, key: str, query: Mapping[str, Any]) -> ParcelLike:
        """Answers a peer.

        Raises:
            TransferLost: what it asks for is not here.
        """
        with self._lock:
            try:
                return self._answer(key.removeprefix(f"{PREFIX}/"), query)
            except KeyError as error:
                raise TransferLost(
                    f"Worker {self.rank} has no {key} of {dict(query)}.",
                    "A worker is asked for what its finished tasks made.",
                    "This is a fault of the program: please report it with the run's log.",
                ) from error

    def _answer(self, wanted: str, query: Mapping[str, Any]) -> ParcelLike:
        iteration = query["iteration"]
        if wanted == "whole":
            return samples_to_parcel(self._whole[iteration])
        part, buffer = query["part"], self._in(iteration)
        if wanted == "scores":
            return buffer.scores(iteration, part, query["role"])
        made, held = buffer.made(iteration, part), buffer.samples(iteration, part)
        if wanted == "lengths":
            return Parcel({"ids": made, "lengths": [held[i].num_tokens for i in made]})
        ids = made if query["ids"] is None else query["ids"]
        return samples_to_parcel([held[i] for i in ids], GENERATED_FIELDS)

    def _in(self, iteration: int) -> ExperienceBuffer:
        return self._held_out if iteration == HELD_OUT else self._buffer

    def _made_of(self, iteration: int, part: int) -> dict[int, dict[int, int]]:
        """Returns tokens of every sample of a finished part, by rank that made it and id."""
        key = (iteration, part)
        if key not in self._made:
            made: dict[int, dict[int, int]] = {}
            for rank in self._map.generators:
                header = self._asked(rank, "lengths", {"iteration": iteration, "part": part}).header
                made[rank] = dict(zip(header["ids"], header["lengths"], strict=True))
            self._made[key] = made
        return self._made[key]

    def _asked(self, rank: int, wanted: str, query: Mapping[str, Any]) -> ParcelLike:
        """Returns the answer of a worker, perhaps this one."""
        key = f"{PREFIX}/{wanted}"
        return self.handle(key, query) if rank == self.rank else self._ask(rank, key, query)

    def _take(self, iteration: int, part: int, wanted: Sequence[int] | None) -> None:
        """Takes over the wanted samples of a part, or all, where they are not here already."""
        with self._lock:
            held = set(self._in(iteration).samples(iteration, part))
        for rank, there in self._made_of(iteration, part).items():
            missing = [i for i in there if i not in held and (wanted is None or i in wanted)]
            if missing and rank != self.rank:
                query = {"iteration": iteration, "part": part, "ids": missing}
                parcel = self._ask(rank, f"{PREFIX}/samples", query)
                samples = samples_from_parcel(parcel, self._prompt_of)
                with self._lock:
                    self._in(iteration).add(iteration, part, samples)
