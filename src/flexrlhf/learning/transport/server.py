"""Answers other processes, one thread per connection."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Final

from flexrlhf.learning.transport.answers import Handler, Request, answer, described
from flexrlhf.learning.transport.connection import Connection, Deadline
from flexrlhf.learning.transport.parcel import MalformedParcel, Parcel

LOOPBACK: Final = "127.0.0.1"

_GREETING_S: Final = 10.0
_REQUEST_S: Final = 30.0
_MAX_ANSWER_S: Final = 3600.0
_JOIN_S: Final = 1.0
_PAUSE_S: Final = 0.05


class ParcelServer:
    """Gives parcels to whoever asks and knows the secret.

    Args:
        host: address of this machine on which to listen; None for this machine only.
        secret: shared with everybody who may ask; it is never sent.
        max_connections: beyond, the connection that was idle longest is closed; when none is
            idle, a new one is refused.
    """

    def __init__(self, host: str | None, secret: str, *, max_connections: int = 256) -> None:
        if not secret:
            raise ValueError("A server without a secret would answer everybody.")
        host = host or LOOPBACK
        is_v6 = ":" in host
        family = socket.AF_INET6 if is_v6 else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        port = self._listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if is_v6 else f"{host}:{port}"
        self._secret = secret
        self._max_connections = max_connections
        self._handlers: dict[str, Handler] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._threads: dict[Connection, threading.Thread] = {}
        self._idle_since_s: dict[Connection, float] = {}
        self._acceptor = threading.Thread(target=self._accept, name="parcel server", daemon=True)
        self._acceptor.start()

    def offer(self, prefix: str, handler: Handler) -> None:
        """Lets `handler` answer the keys `prefix` and `prefix/...`, from now on.

        It is called from several threads at once. What it returns is read after its return, until
        it is sent. A longer prefix goes before a shorter one.
        """
        with self._lock:
            self._handlers[prefix] = handler

    def close(self) -> None:
        """Ends all connections, and within a second all threads but those inside a handler.

        Handlers are let go of, with all that they could have handed out.
        """
        with self._lock:
            self._is_closed = True
            self._handlers.clear()
            connections = dict(self._threads)
        with suppress(OSError):  # only Linux wakes a thread that accepts so; close() does elsewhere
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            connection.interrupt()
        deadline = Deadline(_JOIN_S)
        for thread in (self._acceptor, *connections.values()):
            if thread is not threading.current_thread():
                thread.join(max(0.0, _JOIN_S - deadline.elapsed_s))

    def _accept(self) -> None:
        while True:
            try:
                endpoint, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(_PAUSE_S)  # too many open files, for example: others may close theirs
                continue
            self._admit(Connection(endpoint))

    def _admit(self, connection: Connection) -> None:
        """Starts the connection's thread, or closes the connection where there is no room."""
        with self._lock:
            if len(self._threads) >= self._max_connections and self._idle_since_s:
                oldest = min(self._idle_since_s, key=lambda idle: self._idle_since_s[idle])
                del self._idle_since_s[oldest]
                del self._threads[oldest]
                oldest.interrupt()
            if self._is_closed or len(self._threads) >= self._max_connections:
                connection.close()
                return
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="parcel connection", daemon=True
            )
            self._threads[connection] = thread
            thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            connection.prove_to_client(self._secret, Deadline(_GREETING_S))
            while self._wait(connection):
                self._answer_one(connection)
        except (OSError, MalformedParcel):
            pass  # the other side notices, and says so to its user
        finally:
            with self._lock:
                self._threads.pop(connection, None)
                self._idle_since_s.pop(connection, None)
            connection.close()

    def _wait(self, connection: Connection) -> bool:
        """Waits for a request; False when the connection ends instead."""
        with self._lock:
            self._idle_since_s[connection] = time.monotonic()
        has_more = connection.wait_for_more()
        with self._lock:
            is_ours = self._idle_since_s.pop(connection, None) is not None
        return has_more and is_ours and not self._is_closed

    def _answer_one(self, connection: Connection) -> None:
        parcel = connection.receive(Deadline(_REQUEST_S), max_bytes=0)
        request = Request.from_parcel(parcel)
        deadline = Deadline(min(request.deadline_s, _MAX_ANSWER_S))
        reply = answer(self._handler(request.key), request)
        try:
            connection.send(reply, deadline, with_checksum=request.checked)
        except ValueError as error:
            refusal = {"kind": "FlexError", "wrong": described(error), "right": "", "do": ""}
            connection.send(Parcel({"error": refusal}), deadline)

    def _handler(self, key: str) -> Handler | None:
        with self._lock:
            parts = key.split("/")
            for length in range(len(parts), 0, -1):
                handler = self._handlers.get("/".join(parts[:length]))
                if handler is not None:
                    return handler
        return None
