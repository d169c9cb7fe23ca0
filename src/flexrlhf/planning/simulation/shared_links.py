"""Transfers that share links, as fluids: each flows at its max-min fair rate at every moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

_ROUNDING: Final = 1e-12
"""Part of a transfer's bytes that counts as nothing left."""


def fair_rates(
    flows: Mapping[int, tuple[str, ...]], capacities: Mapping[str, float]
) -> dict[int, float]:
    """Returns the max-min fair rate of every flow, in bytes/s.

    No flow can be faster without making one slower that is not faster than it. Found by filling:
    the link that gives its flows least is full first and fixes their rates; the others share what
    is left.

    Args:
        flows: the links that each occupies at the same time; at least one, each once.
        capacities: of the links, in bytes/s, above 0.

    Source: Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2.
    """
    left = {link: capacities[link] for links in flows.values() for link in links}
    open_on: dict[str, dict[int, None]] = {link: {} for link in left}
    for number, links in flows.items():
        for link in links:
            open_on[link][number] = None
    rates: dict[int, float] = {}
    while open_on:
        narrowest = min(open_on, key=lambda link: left[link] / len(open_on[link]))
        rate = left[narrowest] / len(open_on[narrowest])
        for number in tuple(open_on[narrowest]):
            rates[number] = rate
            for link in flows[number]:
                left[link] -= rate
                del open_on[link][number]
                if not open_on[link]:
                    del open_on[link]
    return rates


@dataclass(slots=True)
class _Flow:
    links: tuple[str, ...]
    num_bytes: float
    rest_bytes: float
    """Not yet sent at `since_s`."""
    since_s: float
    rate: float = 0.0


class SharedLinks:
    """The flows on all links; when one starts or ends, those that it affects get new rates.

    Args:
        capacities: bytes/s of every link.

    Raises:
        ValueError: a link carries nothing.
    """

    def __init__(self, capacities: Mapping[str, float]) -> None:
        for link, capacity in capacities.items():
            if not capacity > 0:
                raise ValueError(f"The link {link!r} carries {capacity} bytes/s.")
        self._capacities = capacities
        self._flows: dict[int, _Flow] = {}
        self._on: dict[str, dict[int, None]] = {link: {} for link in capacities}
        self._loads: dict[str, list[tuple[float, float]]] = {link: [] for link in capacities}

    def __contains__(self, number: int) -> bool:
        return number in self._flows

    @property
    def loads(self) -> dict[str, tuple[tuple[float, float], ...]]:
        """Per link the times at which its load changed, and the bytes/s from then on."""
        return {link: tuple(steps) for link, steps in self._loads.items()}

    def start(
        self, number: int, links: Iterable[str], num_bytes: float, now_s: float
    ) -> dict[int, float]:
        """Lets a flow begin; returns when each flow whose rate thereby changes will have sent all.

        Raises:
            ValueError: a link is unknown.
        """
        flow = _Flow(tuple(dict.fromkeys(links)), num_bytes, num_bytes, now_s)
        for link in flow.links:
            if link not in self._on:
                raise ValueError(f"There is no link {link!r}, only {', '.join(self._on)}.")
            self._on[link][number] = None
        self._flows[number] = flow
        return self._share(flow.links, now_s)

    def end(self, number: int, now_s: float) -> dict[int, float]:
        """Takes away a flow that has sent all; returns the new ends as `start` does."""
        flow = self._flows.pop(number)
        for link in flow.links:
            del self._on[link][number]
        return self._share(flow.links, now_s)

    def _share(self, links: tuple[str, ...], now_s: float) -> dict[int, float]:
        affected = self._neighbours(links)
        rates = fair_rates({n: self._flows[n].links for n in affected}, self._capacities)
        ends: dict[int, float] = {}
        for number, rate in rates.items():
            flow = self._flows[number]
            if rate != flow.rate:
                _advance(flow, now_s)
                flow.rate = rate
                ends[number] = now_s + flow.rest_bytes / rate
        self._note_loads(
            dict.fromkeys([*links, *(x for n in rates for x in self._flows[n].links)]), now_s
        )
        return ends

    def _neighbours(self, links: tuple[str, ...]) -> list[int]:
        """Flows that share one of `links`, or a link with such a flow, and so on; by number."""
        found: set[int] = set()
        seen = set(links)
        open_links = list(links)
        while open_links:
            for number in self._on[open_links.pop()]:
                if number not in found:
                    found.add(number)
                    more = [link for link in self._flows[number].links if link not in seen]
                    seen.update(more)
                    open_links += more
        return sorted(found)

    def _note_loads(self, links: Iterable[str], now_s: float) -> None:
        for link in links:
            steps = self._loads[link]
            if steps and steps[-1][0] == now_s:
                steps.pop()
            load = sum(self._flows[number].rate for number in self._on[link])
            if not steps or steps[-1][1] != load:
                steps.append((now_s, load))


def _advance(flow: _Flow, now_s: float) -> None:
    """Takes off what was sent since the rate last changed."""
    rest = flow.rest_bytes - flow.rate * (now_s - flow.since_s)
    flow.rest_bytes = rest if rest > _ROUNDING * flow.num_bytes else 0.0
    flow.since_s = now_s
