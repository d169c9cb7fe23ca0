"""Experience between workers: what this one made, served to its peers, and what it took from them.

A worker keeps what its tasks make and tells nobody; whoever needs it asks, directly, the workers
that have it. The samples of a part of a rollout are known by ids and lengths, so that every worker
of a role finds the same balanced share by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from flexrlhf.core.algorithm_specs import ScoreStep
from flexrlhf.core.errors import TransferLost
from flexrlhf.core.names import Role
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.transport.parcel import Parcel
from flexrlhf.learning.transport.samples import samples_from_parcel, samples_to_parcel
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.shares import balanced_shares

PREFIX: Final = "experience"

Ask = Callable[[int, str, Mapping[str, Any]], Parcel]
"""Returns what the worker of a rank answers to a key and a query."""


class ExperienceExchange:
    """Samples of the iterations in flight on one worker.

    Args:
        device_map: who keeps what.
        rank: this worker.
        ask: asks another one.
        prompt_of: the prompt that a sample id answers.
    """

    def __init__(
        self, device_map: DeviceMap, rank: int, ask: Ask, prompt_of: Callable[[int], Prompt]
    ) -> None:
        self._map = device_map
        self.rank = rank
        self._ask = ask
        self._prompt_of = prompt_of
        self._lock = threading.RLock()
        self._held: dict[tuple[int, int], dict[int, Sample]] = {}
        """Samples that are here, by iteration and part."""
        self._made: dict[tuple[int, int], list[int]] = {}
        """Ids of those that were generated here."""
        self._scored: dict[tuple[int, int, str], tuple[list[int], tuple[str, ...]]] = {}
        """Ids that a role scored here, and the fields that it wrote."""
        self._shares: dict[tuple[int, int, Role], list[int]] = {}
        self._whole: dict[int, list[Sample]] = {}
        """Samples with advantages, by iteration."""

    def keep_generated(self, iteration: int, part: int, samples: Sequence[Sample]) -> None:
        """Keeps answers that were generated here, for this worker and its peers."""
        with self._lock:
            held = self._held.setdefault((iteration, part), {})
            held.update((sample.sample_id, sample) for sample in samples)
            self._made[iteration, part] = [sample.sample_id for sample in samples]

    def keep_scores(
        self,
        iteration: int,
        part: int,
        role: Role,
        samples: Sequence[Sample],
        fields: Iterable[str],
    ) -> None:
        """Remembers that a role scored these samples here, and wrote these fields into them."""
        with self._lock:
            ids = [sample.sample_id for sample in samples]
            self._scored[iteration, part, role] = (ids, tuple(fields))

    def keep_whole(self, iteration: int, samples: list[Sample]) -> None:
        """Keeps a batch with its advantages."""
        with self._lock:
            self._whole[iteration] = samples

    def share(self, iteration: int, part: int, role: Role) -> list[Sample]:
        """Returns the samples of a part that this worker's replica of `role` scores."""
        key = (iteration, part, role)
        if key not in self._shares:
            lengths = self._lengths(iteration, part)
            ids = sorted(lengths)
            placement = self._map.plan.placement[role]
            speeds = self._map.replica_speeds(role)
            shares = balanced_shares([lengths[i] for i in ids], placement.data_parallel, speeds)
            share = shares[self._map.replica(role, self.rank)]
            self._shares[key] = [ids[place] for place in share]
        wanted = self._shares[key]
        self._take(iteration, part, wanted)
        with self._lock:
            held = self._held[iteration, part]
            return [held[sample_id] for sample_id in wanted]

    def gather(self, iteration: int, num_parts: int, scored: Sequence[ScoreStep]) -> list[Sample]:
        """Returns all samples of an iteration with all scores, in the order of their ids."""
        samples: list[Sample] = []
        for part in range(num_parts):
            self.gather_part(iteration, part, scored)
            with self._lock:
                samples += self._held[iteration, part].values()
        return sorted(samples, key=lambda sample: sample.sample_id)

    def gather_part(self, iteration: int, part: int, scored: Sequence[ScoreStep]) -> None:
        """Takes over all samples of a part and their scores, where they are not here already."""
        self._take(iteration, part, None)
        for step in scored:
            role = self._map.serving(step.role)
            for rank in self._map.scorers(role):
                if rank != self.rank:
                    query = {"iteration": iteration, "part": part, "role": role}
                    self._merge(iteration, part, self._ask(rank, f"{PREFIX}/scores", query))

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
            counts: dict[int, int] = {}
            for (iteration, _), samples in self._held.items():
                counts[iteration] = counts.get(iteration, 0) + len(samples)
            return counts

    def forget(self, iteration: int) -> None:
        """Drops everything of an iteration."""
        with self._lock:
            self._whole.pop(iteration, None)
            for store in (self._held, self._made, self._scored, self._shares):
                for key in [key for key in store if key[0] == iteration]:
                    del store[key]  # pyright: ignore[reportArgumentType]

    def handle(self, key: str, query: Mapping[str, Any]) -> Parcel:
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

    def _answer(self, wanted: str, query: Mapping[str, Any]) -> Parcel:
        iteration = query["iteration"]
        if wanted == "whole":
            return samples_to_parcel(self._whole[iteration])
        part = query["part"]
        held = self._held.get((iteration, part), {})
        if wanted == "scores":
            ids, fields = self._scored[iteration, part, query["role"]]
            return _scores_to_parcel([held[i] for i in ids], fields)
        made = self._made[iteration, part]
        if wanted == "lengths":
            return Parcel({"ids": made, "lengths": [held[i].num_tokens for i in made]})
        ids = made if query["ids"] is None else query["ids"]
        generated = ("logprobs", "sampling_logprobs")
        return samples_to_parcel([held[i] for i in ids], generated)

    def _lengths(self, iteration: int, part: int) -> dict[int, int]:
        """Tokens of every sample of a part, by id."""
        lengths: dict[int, int] = {}
        for rank in self._map.generators:
            header = self._own_or_asked(rank, "lengths", {"iteration": iteration, "part": part})
            lengths.update(zip(header["ids"], header["lengths"], strict=True))
        return lengths

    def _own_or_asked(self, rank: int, wanted: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
        key = f"{PREFIX}/{wanted}"
        return (self.handle if rank == self.rank else _asking(self._ask, rank))(key, query).header

    def _take(self, iteration: int, part: int, wanted: Sequence[int] | None) -> None:
        """Takes over the wanted samples of a part, or all, where they are not here already."""
        with self._lock:
            held = set(self._held.setdefault((iteration, part), {}))
        for rank in self._map.generators:
            if rank == self.rank:
                continue
            query = {"iteration": iteration, "part": part}
            there = self._ask(rank, f"{PREFIX}/lengths", query).header["ids"]
            missing = [i for i in there if i not in held and (wanted is None or i in wanted)]
            if missing:
                parcel = self._ask(rank, f"{PREFIX}/samples", {**query, "ids": missing})
                samples = samples_from_parcel(parcel, self._prompt_of)
                with self._lock:
                    held_here = self._held[iteration, part]
                    for sample in samples:
                        held_here.setdefault(sample.sample_id, sample)

    def _merge(self, iteration: int, part: int, parcel: Parcel) -> None:
        """Writes the scores of a parcel into the samples that are here."""
        ids = parcel.header["ids"]
        with self._lock:
            held = self._held[iteration, part]
            for name, values in parcel.tensors.items():
                if name == "rewards":
                    continue
                lengths = [held[i].num_tokens for i in ids]
                for sample_id, value in zip(ids, torch.split(values, lengths), strict=True):
                    held[sample_id].fields[name] = value
            if "rewards" in parcel.tensors:
                totals, parts_of = parcel.tensors["rewards"].tolist(), parcel.header["reward_parts"]
                rows = zip(ids, totals, parts_of, strict=True)
                for sample_id, reward, parts in rows:
                    held[sample_id].reward, held[sample_id].reward_parts = reward, parts


def _asking(ask: Ask, rank: int) -> Callable[[str, Mapping[str, Any]], Parcel]:
    return lambda key, query: ask(rank, key, query)


def _scores_to_parcel(samples: Sequence[Sample], fields: Sequence[str]) -> Parcel:
    """Packs what a role wrote into samples; without fields, their rewards."""
    ids = [sample.sample_id for sample in samples]
    if not samples:
        return Parcel({"ids": []})
    if not fields:
        rewards = torch.tensor([sample.reward for sample in samples], dtype=torch.float64)
        parts = [dict(sample.reward_parts) for sample in samples]
        return Parcel({"ids": ids, "reward_parts": parts}, {"rewards": rewards})
    tensors: dict[str, Tensor] = {
        name: torch.cat([sample.fields[name] for sample in samples]) for name in fields
    }
    return Parcel({"ids": ids}, tensors)
