"""Which packages this installation has, against those that it declares it can work with."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

PROJECT = "flexrlhf"
TRAIN = "train"
"""The extra that brings what training needs."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that is declared, and what is there of it."""

    name: str
    supported: SpecifierSet
    extra: str
    """The extra that brings it; empty for what every installation has."""
    installed: str | None

    @property
    def is_supported(self) -> bool:
        """Says whether the installed version is one that is declared to work."""
        return self.installed is not None and self.supported.contains(
            self.installed, prereleases=True
        )


def installed_version(name: str) -> str | None:
    """Returns a package's version, None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def declared_packages(extras: tuple[str, ...] = ("", TRAIN)) -> list[Package]:
    """Returns the packages that the project's own metadata names, empty if it is not installed."""
    try:
        declared = metadata.requires(PROJECT) or []
    except metadata.PackageNotFoundError:
        return []
    packages: list[Package] = []
    for requirement in map(Requirement, declared):
        extra = next((extra for extra in extras if _applies(requirement, extra)), None)
        if extra is not None:
            version = installed_version(requirement.name)
            packages.append(Package(requirement.name, requirement.specifier, extra, version))
    return packages


def supported_python() -> SpecifierSet:
    """Returns the versions of Python that the project declares, any if it is not installed."""
    try:
        return SpecifierSet(metadata.metadata(PROJECT)["Requires-Python"] or "")
    except metadata.PackageNotFoundError:
        return SpecifierSet()


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
