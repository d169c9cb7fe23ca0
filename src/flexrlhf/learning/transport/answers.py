"""Requests and answers as parcels, errors of the other side included."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flexrlhf.core.errors import FlexError, TransferLost
from flexrlhf.learning.transport.parcel import MalformedParcel, Parcel, ParcelLike

Handler = Callable[[str, Mapping[str, Any]], ParcelLike]
"""Answers a key and a query. It may be asked the same twice, when a connection breaks."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one process asks another."""

    key: str
    query: Mapping[str, Any]
    deadline_s: float
    checked: bool
    """The answer shall carry a checksum."""

    def to_parcel(self) -> Parcel:
        """Returns the request as it is sent."""
        return Parcel(
            {
                "key": self.key,
                "query": dict(self.query),
                "deadline_s": self.deadline_s,
                "checked": self.checked,
            }
        )

    @classmethod
    def from_parcel(cls, parcel: Parcel) -> Request:
        """Reads a request.

        Raises:
            MalformedParcel: it is none.
        """
        header = parcel.header
        try:
            deadline_s = float(header["deadline_s"])
            if not 0.0 < deadline_s < math.inf:
                raise ValueError(f"a deadline of {deadline_s} s")
            return cls(
                str(header["key"]), dict(header["query"]), deadline_s, bool(header["checked"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedParcel(f"it is no request ({error})") from error


def answer(handler: Handler | None, request: Request) -> Parcel:
    """Returns what a handler answers, or its error, as it is sent."""
    if handler is None:
        return _from_error(TransferLost(f"Nobody answers {request.key!r} here."))
    try:
        parcel = handler(request.key, request.query)
        return Parcel({"answer": dict(parcel.header)}, parcel.tensors)
    except FlexError as error:
        return _from_error(error)
    except Exception as error:  # noqa: BLE001 - reaches whoever asked, with the place of the fault
        return _from_error(FlexError(described(error)))


def described(error: Exception) -> str:
    """Returns type, message and place of an exception that nobody expected."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _from_error(error: FlexError) -> Parcel:
    kind = type(error).__name__
    parts = {"kind": kind, "wrong": error.wrong, "right": error.right, "do": error.do}
    return Parcel({"error": parts})


def opened(parcel: Parcel, address: str, key: str) -> Parcel:
    """Returns the answer in what came back.

    Raises:
        FlexError: of the kind that the other side raised; it names the other side.
    """
    error = parcel.header.get("error")
    if error is None:
        return Parcel(parcel.header["answer"], parcel.tensors)
    kind = _kinds(FlexError).get(error["kind"], FlexError)
    raise kind(f"{address} does not give {key!r}: {error['wrong']}", error["right"], error["do"])


def _kinds(root: type[FlexError]) -> dict[str, type[FlexError]]:
    kinds = {root.__name__: root}
    for kind in root.__subclasses__():
        kinds |= _kinds(kind)
    return kinds
