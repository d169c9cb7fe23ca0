"""What joins the machines of a Ray cluster, and how fast they are, as a profile has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.link import Link

_ALIKE: Final = 1.5
"""Links that differ by less count as equal: what is measured varies."""


@dataclass(frozen=True, slots=True)
class JoinedMachine:
    """One machine."""

    address: str
    products_per_s: float
    """Of one of its workers, while one on every other machine computes too."""


@dataclass(frozen=True, slots=True)
class JoinedLink:
    """What experience and weights find between two machines; of the two ways the slower."""

    between: tuple[str, str]
    """Addresses."""
    bytes_per_s: float
    latency_s: float
    """Half of what a question and its answer take longer than inside a machine."""


@dataclass(frozen=True, slots=True)
class JoinedMachines:
    """The machines of one cluster."""

    products_per_s: float
    """Of one process alone where everything else of the profile was measured."""
    machines: tuple[JoinedMachine, ...]
    links: tuple[JoinedLink, ...]
    """One for each two machines."""

    def speed_of(self, address: str) -> float:
        """Returns how fast a machine's workers are by a process of the rest of the profile.

        Raises:
            ConfigError: the machine was not measured.
        """
        for machine in self.machines:
            if machine.address == address:
                return machine.products_per_s / self.products_per_s
        raise self._unknown(address)

    def are_alike(self, addresses: Sequence[str]) -> bool:
        """Says whether the links between machines are about as fast as each other."""
        rates = [link.bytes_per_s for link in self._between(addresses, addresses)]
        return not rates or max(rates) < _ALIKE * min(rates)

    def slowest(self, some: Sequence[str], others: Sequence[str]) -> Link | None:
        """Returns the slowest link from some machines to others, or among the same ones.

        Of a machine with itself it is the slowest that it has: what would join another like it.
        None where nothing joins them.
        """
        found = self._between(some, others) or self._between(some, self._addresses)
        return _value(min(found, key=lambda link: link.bytes_per_s)) if found else None

    @property
    def _addresses(self) -> list[str]:
        return [machine.address for machine in self.machines]

    def _between(self, some: Sequence[str], others: Sequence[str]) -> list[JoinedLink]:
        ends = {frozenset((a, b)) for a in some for b in others}
        return [link for link in self.links if frozenset(link.between) in ends]

    def _unknown(self, address: str) -> ConfigError:
        known = ", ".join(self._addresses)
        return ConfigError(
            f"The profile says nothing of the machine {address}.",
            f"It was measured on {known}.",
            "Measure the cluster as it is now: flexrlhf profile --ray auto --out FILE",
        )


def joined_document(joined: JoinedMachines) -> dict[str, Any]:
    """Returns the section `joined` of a profile."""
    return {
        "products_per_s": joined.products_per_s,
        "machines": [asdict(machine) for machine in joined.machines],
        "links": [asdict(link) | {"between": list(link.between)} for link in joined.links],
    }


def joined_from(section: Mapping[str, Any]) -> JoinedMachines:
    """Returns what `joined_document` wrote.

    Args:
        section: checked.
    """
    return JoinedMachines(
        section["products_per_s"],
        tuple(JoinedMachine(**row) for row in section["machines"]),
        tuple(JoinedLink(**(row | {"between": tuple(row["between"])})) for row in section["links"]),
    )


def _value(link: JoinedLink) -> Link:
    name = f"{link.bytes_per_s * 8e-9:.2g} Gbit/s"
    source = "measured by flexrlhf profile --ray"
    return Link(name, link.bytes_per_s, link.latency_s, source, is_measured=True)
