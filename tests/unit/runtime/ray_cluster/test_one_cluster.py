"""A process that is in one Ray cluster does not take it for another."""

from __future__ import annotations

import socket

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.runtime.ray_cluster import session

pytestmark = pytest.mark.ray


def test_another_cluster_is_refused_and_the_present_one_joined_again(ray_processes):
    import ray

    present = ray.get_runtime_context().gcs_address
    session.join(present)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"this process is in the cluster {present}"):
            session.join(address)
