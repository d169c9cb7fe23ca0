"""Looks up plug-ins by name and imports what they need only then.

A family of plug-ins is one plain dict, `{"name": "package.module:Attribute"}`. A plug-in that a run
does not use costs nothing, and an optional package that is missing is named with the command that
installs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module, metadata
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from flexrlhf.core.errors import ConfigError, EngineMissing, nearest

_PACKAGE = "flexrlhf"


def load_plugin(family: str, table: Mapping[str, str], name: str) -> Any:
    """Returns the attribute that `table` holds under `name`.

    Args:
        family: what the plug-ins are, in the user's words; it begins the error message.
        table: `"name": "package.module:Attribute"`.
        name: the plug-in to load.

    Raises:
        ConfigError: no plug-in has this name.
        EngineMissing: the plug-in's module needs a package that is not installed.
    """
    if name not in table:
        raise ConfigError(
            f"{family} {name!r} is unknown.",
            f"Known: {', '.join(sorted(table))}.",
            nearest(name, table) or "Choose one of these.",
        )
    module, _, attribute = table[name].partition(":")
    return getattr(import_package(module, needed_by=f"{family} {name!r}"), attribute)


def import_package(module: str, *, needed_by: str) -> ModuleType:
    """Imports `module`.

    Args:
        module: dotted name.
        needed_by: what asks for it, in the user's words; it begins the error message.

    Raises:
        EngineMissing: `module`, or a package that it imports, is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", _PACKAGE):
            raise
        raise _missing(missing, needed_by) from error


def require_package(package: str, *, needed_by: str) -> None:
    """Checks that `package` is installed without importing it.

    Raises:
        EngineMissing: it is not.
    """
    if find_spec(package) is None:
        raise _missing(package, needed_by)


def _missing(package: str, needed_by: str) -> EngineMissing:
    return EngineMissing(
        f"{needed_by} needs the package {package!r}, which is not installed.",
        "Planning and reports work without the optional packages; all else needs some.",
        f"Install it: pip install {_install_target(package)}",
    )


def _install_target(module: str) -> str:
    """Returns what to give to pip: the extra of this package that brings `module`, or `module`."""
    wanted = _normalised(module)
    for requirement in metadata.requires(_PACKAGE) or []:
        distribution = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if distribution and extra and _normalised(distribution[0]) == wanted:
            return f"'{_PACKAGE}[{extra[1]}]'"
    return wanted


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
