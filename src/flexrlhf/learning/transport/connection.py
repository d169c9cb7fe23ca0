"""Parcels over one TCP connection, every operation before a deadline."""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from contextlib import suppress
from typing import Final

from flexrlhf.learning.transport.parcel import MAX_PARCEL_BYTES, Parcel, ParcelLike, decode, encode

_MARK: Final = b"FXC1"
_NONCE_BYTES: Final = 16
_PROOF_BYTES: Final = 32
_SMALL_BYTES: Final = 1 << 16
"""Smaller pieces are gathered before they are sent."""


class NotTrusted(ConnectionError):
    """The other side does not know the secret, or speaks another protocol."""


class Deadline:
    """A moment by which all of an exchange must be over."""

    def __init__(self, seconds: float) -> None:
        self._started_s = time.monotonic()
        self.seconds = seconds

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was set."""
        return time.monotonic() - self._started_s

    def left_s(self) -> float:
        """Returns the seconds left.

        Raises:
            TimeoutError: none is.
        """
        left = self.seconds - self.elapsed_s
        if left <= 0.0:
            raise TimeoutError(f"{self.seconds:g} s are over")
        return left


class Connection:
    """One end of a connection; the side that opened it asks, the other answers."""

    def __init__(self, endpoint: socket.socket) -> None:
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = endpoint

    def send(self, parcel: ParcelLike, deadline: Deadline, *, with_checksum: bool = False) -> None:
        """Sends a parcel.

        Raises:
            OSError: the other side is gone, or the deadline passed (TimeoutError).
            ValueError: the parcel cannot be sent; then nothing of it was.
        """
        gathered = bytearray()
        for piece in encode(parcel, with_checksum=with_checksum):
            if len(gathered) + len(piece) <= _SMALL_BYTES:
                gathered += piece
                continue
            self._send_bytes(gathered, deadline)
            gathered.clear()
            self._send_bytes(piece, deadline)
        self._send_bytes(gathered, deadline)

    def receive(self, deadline: Deadline, *, max_bytes: int = MAX_PARCEL_BYTES) -> Parcel:
        """Receives a parcel.

        Raises:
            OSError: the other side is gone, or the deadline passed (TimeoutError).
            MalformedParcel: what came is no parcel, is damaged, or too large.
        """
        return decode(lambda memory: self._fill(memory, deadline), max_bytes=max_bytes)

    def wait_for_more(self) -> bool:
        """Waits without limit until something comes; False when the other side has closed."""
        self._socket.settimeout(None)
        return bool(self._socket.recv(1, socket.MSG_PEEK))

    def is_stale(self) -> bool:
        """Says whether an idle connection was closed by the other side."""
        self._socket.settimeout(0.0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def prove_to_server(self, secret: str, deadline: Deadline) -> None:
        """Shows the server, which shows it too, that both know the secret, without sending it.

        Raises:
            NotTrusted: it does not.
            OSError: it is gone, or the deadline passed.
        """
        own = secrets.token_bytes(_NONCE_BYTES)
        self._send_bytes(_MARK + own, deadline)
        reply = self._read(len(_MARK) + _NONCE_BYTES + _PROOF_BYTES, deadline)
        theirs, proof = reply[len(_MARK) : -_PROOF_BYTES], reply[-_PROOF_BYTES:]
        if not reply.startswith(_MARK) or not _is_proof(proof, secret, b"server" + own + theirs):
            raise NotTrusted("it has another secret")
        self._send_bytes(_proof(secret, b"client" + own + theirs), deadline)

    def prove_to_client(self, secret: str, deadline: Deadline) -> None:
        """The server's side of `prove_to_server`.

        Raises:
            NotTrusted: the client does not know the secret.
            OSError: it is gone, or the deadline passed.
        """
        greeting = self._read(len(_MARK) + _NONCE_BYTES, deadline)
        if not greeting.startswith(_MARK):
            raise NotTrusted("it speaks another protocol")
        theirs, own = greeting[len(_MARK) :], secrets.token_bytes(_NONCE_BYTES)
        self._send_bytes(_MARK + own + _proof(secret, b"server" + theirs + own), deadline)
        if not _is_proof(self._read(_PROOF_BYTES, deadline), secret, b"client" + theirs + own):
            raise NotTrusted("it has another secret")

    def interrupt(self) -> None:
        """Ends the connection for both sides; a thread that waits on it wakes."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the connection; only by the thread that uses it."""
        self._socket.close()

    def _send_bytes(self, data: bytes | bytearray | memoryview, deadline: Deadline) -> None:
        if data:
            self._socket.settimeout(deadline.left_s())
            self._socket.sendall(data)

    def _read(self, num_bytes: int, deadline: Deadline) -> bytes:
        data = bytearray(num_bytes)
        self._fill(memoryview(data), deadline)
        return bytes(data)

    def _fill(self, memory: memoryview, deadline: Deadline) -> None:
        filled = 0
        while filled < len(memory):
            self._socket.settimeout(deadline.left_s())
            received = self._socket.recv_into(memory[filled:])
            if received == 0:
                raise ConnectionResetError("it closed the connection")
            filled += received


def connect(address: str, secret: str, deadline: Deadline) -> Connection:
    """Opens a connection to `host:port`.

    Raises:
        NotTrusted: the server does not know the secret.
        OSError: nobody listens there, or the deadline passed.
    """
    host, _, port = address.rpartition(":")
    endpoint = socket.create_connection((host.strip("[]"), int(port)), timeout=deadline.left_s())
    connection = Connection(endpoint)
    try:
        connection.prove_to_server(secret, deadline)
    except BaseException:
        connection.close()
        raise
    return connection


def _proof(secret: str, message: bytes) -> bytes:
    return hmac.digest(secret.encode(), message, "sha256")


def _is_proof(proof: bytes, secret: str, message: bytes) -> bool:
    """Compares in a time that does not depend on where the difference is."""
    return hmac.compare_digest(proof, _proof(secret, message))
