"""A server on loopback that is closed after the test, with the connections kept to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from flexrlhf.learning.transport.fetching import close_idle_connections
from flexrlhf.learning.transport.server import ParcelServer

SECRET = "between us"


@pytest.fixture
def make_server() -> Iterator[Callable[..., ParcelServer]]:
    servers: list[ParcelServer] = []

    def make(**keys) -> ParcelServer:
        servers.append(ParcelServer(None, SECRET, **keys))
        return servers[-1]

    yield make
    close_idle_connections()
    for server in servers:
        server.close()
