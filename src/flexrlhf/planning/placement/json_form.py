"""Checks that a plan's JSON has the keys and names that this version knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from flexrlhf.core.errors import PlanError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def check_keys(cls: type[DataclassInstance], document: Mapping[str, Any], what: str) -> None:
    """Compares the keys of `document` with the fields of `cls`, which is `what` in the message.

    Raises:
        PlanError: a key is unknown, or one without a default is missing.
    """
    known = [f.name for f in fields(cls)]
    required = [
        f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING
    ]
    unknown = [key for key in document if key not in known]
    missing = [key for key in required if key not in document]
    if unknown or missing:
        faults = [f"unknown: {', '.join(unknown)}"] if unknown else []
        faults += [f"missing: {', '.join(missing)}"] if missing else []
        raise PlanError(
            f"The keys of a {what} are not right; {'; '.join(faults)}.",
            f"Known: {', '.join(known)}; {', '.join(required)} must be there.",
            "Let `flexrlhf plan --json` write the plan again.",
        )


def check_names(names: Iterable[str], known: Sequence[str], what: str) -> None:
    """Compares each name with a closed list.

    Raises:
        PlanError: a name is not in the list.
    """
    for name in names:
        if name not in known:
            raise PlanError(
                f"{name!r} is no {what}. {nearest(name, known)}".rstrip(),
                f"Known: {', '.join(known)}.",
                "Choose one of these.",
            )
