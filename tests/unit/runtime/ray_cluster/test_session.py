"""Addresses at which there is no Ray cluster are refused at once."""

from __future__ import annotations

import socket
import time

import pytest

from flexrlhf.core import plugins
from flexrlhf.core.errors import ConfigError, EngineMissing
from flexrlhf.runtime.ray_cluster import session


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(plugins, "find_spec", lambda _: None)
    monkeypatch.setattr(plugins.metadata, "requires", lambda _: ["ray>=2.50; extra == 'ray'"])
    with pytest.raises(EngineMissing, match=r"pip install 'flexrlhf\[ray\]'"):
        session.require_ray()


@pytest.mark.ray
@pytest.mark.parametrize("address", ["nonsense", "host:port", "127.0.0.1:0", "127.0.0.1:99999"])
def test_what_is_no_address(address):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        session.join(address)


@pytest.mark.ray
def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(ConfigError, match="no Ray cluster answers"):
        session.join(f"127.0.0.1:{port}")
    assert time.monotonic() - started < 60
