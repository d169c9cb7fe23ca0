"""What the sources have of a role, who of them failed, and which version is complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flexrlhf.core.errors import FlexError, StaleWeights
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.weights.asking import Ask, in_threads
from flexrlhf.learning.weights.catalogue import merged, offers_of
from flexrlhf.learning.weights.division import Need, divide, needs_of
from flexrlhf.learning.weights.pieces import CATALOGUE_KEY


class Survey:
    """The sources of one transfer.

    Args:
        role: whose weights are wanted.
        version: None asks for all versions.
        sources: addresses.
        ask: how to ask one of them.
    """

    def __init__(self, role: str, version: int | None, sources: Sequence[str], ask: Ask) -> None:
        self._role = role
        self._version = version
        self._catalogues: dict[str, Mapping[str, Any]] = {}
        self._names: dict[str, str] = {}
        self._errors: dict[str, FlexError] = {}
        for source, error in self._read(role, sources, ask).items():
            self.exclude(source, error)

    def add_peers(self, name: str, peers: Sequence[str], ask: Ask) -> list[str]:
        """Makes sources of the peers that have installed what is wanted; returns the others.

        A peer that does not answer is neither.

        Args:
            name: under which peers answer for these weights.
            peers: addresses.
            ask: how to ask one of them.
        """
        failed = self._read(name, peers, ask)
        behind = [peer for peer in peers if peer not in failed and not self._catalogues[peer]]
        for peer in behind:
            del self._catalogues[peer]
        return behind

    def name_at(self, source: str) -> str:
        """Returns the name under which a source has the weights."""
        return self._names[source]

    def _read(self, name: str, sources: Sequence[str], ask: Ask) -> dict[str, FlexError]:
        """Notes what sources have, and returns the errors of those that do not answer."""
        query = {"role": name, "version": self._version}

        def read(source: str) -> Mapping[str, Any] | FlexError:
            try:
                return ask(source, CATALOGUE_KEY, query).header["versions"]
            except FlexError as error:
                return error

        failed: dict[str, FlexError] = {}
        for source, answer in zip(sources, in_threads(read, sources), strict=True):
            self._names[source] = name
            if isinstance(answer, FlexError):
                failed[source] = answer
            else:
                self._catalogues[source] = answer
        return failed

    @property
    def alive(self) -> list[str]:
        """Sources that have not failed, in the order in which they were named."""
        return [source for source in self._catalogues if source not in self._errors]

    def exclude(self, source: str, error: FlexError) -> None:
        """Asks a source that failed no more."""
        self._errors[source] = error

    def choose(self, targets: Mapping[str, Shard]) -> tuple[int, list[Need]]:
        """Returns the wanted version, or the newest of which all is there, and the needs.

        Raises:
            FlexError: there is none; of the kind of the failure that is likely the cause.
            ShapeError: a weight has another shape at a source.
        """
        known = {int(each) for rows in self._catalogues.values() for each in rows}
        candidates = sorted(known, reverse=True) if self._version is None else [self._version]
        missing: list[str] = []
        for version in candidates:
            offers = merged(
                offers_of(source, rows.get(str(version), {}))
                for source, rows in self._catalogues.items()
            )
            needs, missing = needs_of(targets, offers)
            _, uncovered = divide(needs, self.alive)
            missing += [need.name for need in uncovered]
            if not missing:
                return version, needs
        raise self.incomplete(missing)

    def incomplete(self, missing: Sequence[str]) -> FlexError:
        """Returns what to raise when nobody alive has the weights named."""
        wanted = "A whole version" if self._version is None else f"Version {self._version}"
        names = ", ".join(list(dict.fromkeys(missing))[:3]) or "any of it"
        wrong = f"{wanted} of {self._role} cannot be had: nobody who answers has {names}."
        if not self._errors:
            return StaleWeights(
                wrong,
                f"Asked were {', '.join(self._catalogues) or 'none'}.",
                "Publish a version wherever a part of it lies before it is pulled.",
            )
        source, cause = next(iter(self._errors.items()))
        return type(cause)(f"{wrong} {source}: {cause.wrong}", cause.right, cause.do)
