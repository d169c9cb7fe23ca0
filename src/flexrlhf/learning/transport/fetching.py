"""Asks another process for a parcel."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

from flexrlhf.core.errors import TransferLost
from flexrlhf.learning.transport.answers import Request, opened
from flexrlhf.learning.transport.connection import Connection, Deadline, connect
from flexrlhf.learning.transport.parcel import MAX_PARCEL_BYTES, MalformedParcel, Parcel

_MAX_IDLE: Final = 4


class _IdleConnections:
    """Connections that nobody uses now, by peer; opening one costs two round trips."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[Connection]] = {}

    def take(self, peer: tuple[str, str]) -> Connection | None:
        """Returns a live one, which is then the caller's."""
        while True:
            with self._lock:
                connections = self._idle.get(peer)
                if not connections:
                    return None
                connection = connections.pop()
            if not connection.is_stale():
                return connection
            connection.close()

    def give_back(self, peer: tuple[str, str], connection: Connection) -> None:
        """Keeps a connection for the next caller, unless enough are kept."""
        with self._lock:
            connections = self._idle.setdefault(peer, [])
            if len(connections) < _MAX_IDLE:
                connections.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            connections = [one for several in self._idle.values() for one in several]
            self._idle.clear()
        for connection in connections:
            connection.close()


_idle_connections = _IdleConnections()


def close_idle_connections() -> None:
    """Closes what `fetch` keeps open for the next time."""
    _idle_connections.close()


def fetch(
    address: str,
    secret: str,
    key: str,
    query: Mapping[str, Any],
    *,
    deadline_s: float,
    checked: bool = False,
    max_bytes: int = MAX_PARCEL_BYTES,
) -> Parcel:
    """Returns what the process at `address` answers.

    Args:
        address: `host:port` of a `ParcelServer`.
        secret: the server's.
        key: what is asked for; its first part says who answers.
        query: JSON values for the handler.
        deadline_s: for all of it, connecting included.
        checked: also compare a checksum of the tensors' bytes.
        max_bytes: most bytes of tensors that are accepted.

    Raises:
        TransferLost: the peer is gone, refuses, or did not answer before the deadline.
        FlexError: the handler raised it there.
    """
    deadline = Deadline(deadline_s)
    request = Request(key, query, deadline_s, checked)
    try:
        reply = _ask((address, secret), request, deadline, max_bytes)
    except TimeoutError as error:
        raise _lost(request, address, deadline, "nothing more came before the deadline") from error
    except (OSError, MalformedParcel) as error:
        raise _lost(request, address, deadline, str(error)) from error
    return opened(reply, address, key)


def _ask(peer: tuple[str, str], request: Request, deadline: Deadline, max_bytes: int) -> Parcel:
    idle = _idle_connections.take(peer)
    if idle is not None:
        try:
            return _exchange(peer, idle, request, deadline, max_bytes)
        except ConnectionError:
            # The server may close an idle connection for a new one just when it is taken up.
            deadline.left_s()
    return _exchange(peer, connect(*peer, deadline), request, deadline, max_bytes)


def _exchange(
    peer: tuple[str, str],
    connection: Connection,
    request: Request,
    deadline: Deadline,
    max_bytes: int,
) -> Parcel:
    try:
        connection.send(request.to_parcel(), deadline)
        reply = connection.receive(deadline, max_bytes=max_bytes)
    except BaseException:
        connection.close()
        raise
    _idle_connections.give_back(peer, connection)
    return reply


def _lost(request: Request, address: str, deadline: Deadline, why: str) -> TransferLost:
    return TransferLost(
        f"{request.key!r} did not come from {address} within {deadline.elapsed_s:.1f} s: {why}.",
        f"It was to come within {deadline.seconds:g} s.",
        "Look for that process in the log; on several hosts, check the network between them.",
    )
