from __future__ import annotations

import socket
import threading
import time
from functools import partial

import pytest
import torch

from flexrlhf.core.errors import TransferLost
from flexrlhf.learning.transport.fetching import close_idle_connections, fetch
from flexrlhf.learning.transport.server import ParcelServer
from flexrlhf.learning.weights.pieces import PREFIX
from flexrlhf.learning.weights.pulling import pull
from flexrlhf.learning.weights.store import WeightStore

SECRET = "between us"


@pytest.fixture
def make_source():
    servers: list[ParcelServer] = []

    def make(shards) -> ParcelServer:
        store, server = WeightStore(), ParcelServer(None, SECRET)
        store.publish("actor", 1, shards)
        server.offer(PREFIX, store.handle)
        servers.append(server)
        return server

    yield make
    close_idle_connections()
    for server in servers:
        server.close()


def ask(address, key, query, deadline_s=5.0):
    return fetch(address, SECRET, key, query, deadline_s=deadline_s)


def test_weights_come_over_tcp_and_all_threads_end(make_source, rows, whole, empty_like):
    before = set(threading.enumerate())
    values = torch.randn(300, 70).bfloat16()
    sources = [make_source({"w": rows(values, low, low + 100)}) for low in (0, 100, 200)]
    target = empty_like(whole(w=values))
    addresses = [source.address for source in sources]
    receipt = pull("actor", 1, target, addresses, ask, bucket_bytes=4096).install()
    assert torch.equal(target["w"].tensor, values)
    assert receipt.num_bytes == values.nbytes
    for source in sources:
        source.close()
    assert set(threading.enumerate()) <= before


def test_a_silent_source_is_given_up_at_its_deadline(make_source, whole, empty_like):
    shards = whole(w=torch.randn(8, 8))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_address = f"127.0.0.1:{silent.getsockname()[1]}"
        quick = partial(ask, deadline_s=0.3)
        start = time.monotonic()
        with pytest.raises(TransferLost, match=silent_address):
            pull("actor", 1, empty_like(shards), [silent_address], quick)
        assert time.monotonic() - start < 1.5
        target = empty_like(shards)
        pull("actor", 1, target, [silent_address, make_source(shards).address], quick).install()
    assert torch.equal(target["w"].tensor, shards["w"].tensor)
