from __future__ import annotations

import socket
import threading
import time

import pytest
import torch

from flexrlhf.core.errors import FlexError, StaleWeights, TransferLost
from flexrlhf.learning.transport.connection import Deadline, connect
from flexrlhf.learning.transport.fetching import close_idle_connections, fetch
from flexrlhf.learning.transport.parcel import Parcel
from flexrlhf.learning.transport.server import ParcelServer

SECRET = "between us"


def echo(key, query) -> Parcel:
    return Parcel({"key": key, "query": dict(query)}, {"x": torch.arange(query["count"])})


def ask(server: ParcelServer, key: str = "echo", count: int = 3, **keys) -> Parcel:
    return fetch(server.address, SECRET, key, {"count": count}, **{"deadline_s": 5.0, **keys})


def wait_until(condition, seconds: float = 5.0) -> None:
    deadline = Deadline(seconds)
    while not condition():
        deadline.left_s()
        time.sleep(0.005)


def test_the_handler_of_the_longest_prefix_answers(make_server):
    server = make_server()
    server.offer("echo", echo)
    server.offer("echo/far", lambda key, query: Parcel({"far": key}))
    reply = ask(server, "echo/near", count=5)
    assert reply.header == {"key": "echo/near", "query": {"count": 5}}
    assert torch.equal(reply.tensors["x"], torch.arange(5))
    assert ask(server, "echo/far/away").header == {"far": "echo/far/away"}
    with pytest.raises(TransferLost, match=r"Nobody answers 'echoes'"):
        ask(server, "echoes")


def test_large_parcels_come_whole_and_checked(make_server):
    server = make_server()
    server.offer("echo", echo)
    assert torch.equal(
        ask(server, count=3_000_000, checked=True).tensors["x"].diff().unique(),
        torch.ones(1, dtype=torch.int64),
    )
    with pytest.raises(TransferLost, match="more than 1000 bytes"):
        ask(server, count=1000, max_bytes=1000)


def test_threads_share_connections_and_do_not_mix_answers(make_server):
    server = make_server()
    server.offer("echo", echo)
    wrong: list[int] = []

    def many(count: int) -> None:
        lengths = [len(ask(server, count=count).tensors["x"]) for _ in range(20)]
        wrong.extend(length for length in lengths if length != count)

    threads = [threading.Thread(target=many, args=(count,)) for count in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert not wrong
    assert len(server._threads) <= 5


def test_an_error_comes_back_as_its_kind_and_says_who_said_it(make_server):
    def refuse(key, query):
        raise StaleWeights("version 3 is retired", "5 is newest", "ask for that")

    def fail(key, query):
        return Parcel({"x": query["absent"]})

    server = make_server()
    server.offer("refuse", refuse)
    server.offer("fail", fail)
    server.offer("nan", lambda key, query: Parcel({"x": float("nan")}))
    with pytest.raises(StaleWeights) as caught:
        ask(server, "refuse")
    assert str(caught.value).startswith(f"{server.address} does not give 'refuse': version 3")
    assert caught.value.do == "ask for that"
    with pytest.raises(FlexError, match=r"KeyError: .*test_fetching.py:\d+"):
        ask(server, "fail")
    with pytest.raises(FlexError, match="ValueError: Out of range"):
        ask(server, "nan")


def test_a_wrong_secret_is_refused_on_both_sides(make_server):
    server = make_server()
    server.offer("echo", echo)
    with pytest.raises(TransferLost, match="another secret"):
        fetch(server.address, "guess", "echo", {"count": 1}, deadline_s=5.0)
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=5.0) as stranger:
        stranger.sendall(b"FXC1" + bytes(16))
        assert len(stranger.recv(52, socket.MSG_WAITALL)) == 52
        stranger.sendall(bytes(32))
        assert stranger.recv(1) == b""


def test_a_client_does_not_trust_a_server_without_the_secret():
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        address = f"127.0.0.1:{impostor.getsockname()[1]}"

        def greet() -> None:
            stranger, _ = impostor.accept()
            with stranger:
                stranger.sendall(b"FXC1" + bytes(48))
                stranger.recv(100)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(TransferLost, match="another secret"):
            fetch(address, SECRET, "echo", {}, deadline_s=5.0)
        thread.join(5.0)


def test_a_silent_peer_is_given_up_at_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(TransferLost) as caught:
            fetch(address, SECRET, "weights/pieces", {}, deadline_s=0.3)
        assert 0.25 < time.monotonic() - start < 1.5
    assert "'weights/pieces'" in str(caught.value)
    assert address in str(caught.value)
    assert "0.3 s" in str(caught.value)


def test_a_slow_handler_is_given_up_at_the_deadline(make_server):
    server = make_server()
    release = threading.Event()
    server.offer("slow", lambda key, query: Parcel({"late": release.wait(5.0)}))
    start = time.monotonic()
    with pytest.raises(TransferLost, match="before the deadline"):
        ask(server, "slow", deadline_s=0.2)
    assert time.monotonic() - start < 1.5
    release.set()


def test_nobody_listening_is_said_at_once():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    with pytest.raises(TransferLost, match="refused"):
        fetch(address, SECRET, "echo", {}, deadline_s=5.0)


def test_a_peer_that_comes_back_is_asked_on_a_new_connection(make_server):
    server = make_server()
    server.offer("echo", echo)
    ask(server)
    for connection in list(server._threads):
        connection.interrupt()
    assert len(ask(server).tensors["x"]) == 3


def test_idle_connections_make_room_and_busy_ones_do_not(make_server):
    server = make_server(max_connections=2)
    entered, release = threading.Semaphore(0), threading.Event()

    def wait(key, query):
        entered.release()
        return Parcel({"late": release.wait(5.0)})

    server.offer("wait", wait)
    server.offer("echo", echo)
    idle = [connect(server.address, SECRET, Deadline(5.0)) for _ in range(2)]
    wait_until(lambda: len(server._idle_since_s) == 2)
    assert ask(server).header["key"] == "echo"
    callers = [threading.Thread(target=ask, args=(server, "wait")) for _ in range(2)]
    for caller in callers:
        caller.start()
        assert entered.acquire(timeout=5.0)
    with pytest.raises(TransferLost, match=r"closed the connection|reset"):
        ask(server)
    release.set()
    for caller in callers:
        caller.join(5.0)
    assert ask(server).header["key"] == "echo"
    for connection in idle:
        connection.close()


def test_closing_ends_every_thread_within_a_second(make_server):
    before = set(threading.enumerate())
    server = make_server()
    server.offer("echo", echo)
    ask(server)
    half_open = socket.create_connection(tuple(server.address.split(":")), timeout=5.0)
    wait_until(lambda: len(server._threads) == 2)
    start = time.monotonic()
    server.close()
    assert time.monotonic() - start < 1.0
    assert set(threading.enumerate()) <= before
    half_open.close()
    with pytest.raises(TransferLost):
        ask(server)
    close_idle_connections()


def test_a_server_needs_a_secret_and_listens_where_it_is_told():
    with pytest.raises(ValueError, match="without a secret"):
        ParcelServer(None, "")
    server = ParcelServer("::1", SECRET) if socket.has_ipv6 else ParcelServer(None, SECRET)
    server.offer("echo", echo)
    assert ask(server).header["key"] == "echo"
    close_idle_connections()
    server.close()
