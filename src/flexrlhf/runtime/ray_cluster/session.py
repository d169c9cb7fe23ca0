"""Ray itself: a cluster of our own on this machine, or one that is there."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from flexrlhf.core.errors import ConfigError
from flexrlhf.core.machine import logical_cpus
from flexrlhf.core.plugins import require_package
from flexrlhf.runtime.ray_cluster.authentication import (
    MODE,
    known_token,
    own_token,
    token_source,
)
from flexrlhf.runtime.ray_cluster.orphans import OrphanGuard, children_begun
from flexrlhf.runtime.ray_cluster.probe import probe
from flexrlhf.runtime.ray_cluster.warm_start.template import LAUNCHER, WorkerTemplate

Kind = Literal["CPU", "GPU"]
"""What a worker occupies one of."""

logger = logging.getLogger(__name__)

_OBJECT_STORE_BYTES: Final = 100_000_000
"""Ray's store carries only task names and small numbers."""
_QUIET: Final[Mapping[str, str]] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "false",
}
_SEVERAL_HOSTS: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Whether Ray uses addresses that others reach; otherwise it listens on loopback alone."""
_ACCELERATOR: Final = "accelerator_type:"
"""Begins the resource that a machine with GPUs has besides."""
_AUTO: Final = "auto"
_PROBE_S: Final = 5.0
"""How long a connection to a cluster's head may take."""
_guards: Final[list[OrphanGuard]] = []
"""Of the cluster of our own, while there is one."""


@dataclass(frozen=True, slots=True)
class RayNode:
    """One machine of a Ray cluster."""

    node_id: str
    address: str
    cpus: float
    gpus: float
    """Free now, as are the CPUs."""
    memory_bytes: float = 0.0
    """Of the machine, as Ray counts it."""
    accelerator: str | None = None
    """What Ray calls the type of its GPUs, such as H100."""

    def room(self, kind: Kind) -> int:
        """Returns the workers that it has room for; one on a GPU takes a CPU besides."""
        return int(min(self.gpus, self.cpus) if kind == "GPU" else self.cpus)

    def words(self, kind: Kind) -> str:
        """Returns what is free, for messages."""
        gpus = f"{int(self.gpus)} GPUs and " if kind == "GPU" else ""
        return f"{gpus}{int(self.cpus)} CPUs on {self.address}"


def require_ray() -> None:
    """Checks that Ray is installed, without importing it.

    Raises:
        EngineMissing: it is not.
    """
    require_package("ray", needed_by="Training on several devices")


def start_local(
    num_workers: int, make_template: Callable[[], WorkerTemplate | None] | None = None
) -> None:
    """Starts a cluster on this machine alone that has room for so many workers.

    Args:
        num_workers: that find room.
        make_template: gives what they are forks of, if this starts a cluster: a template is for one
            cluster. None: each begins anew.

    Raises:
        EngineMissing: Ray is not installed.
    """
    require_ray()
    with _environment({**own_token(os.environ), _SEVERAL_HOSTS: "0"}):
        ray = _ray()
        if ray.is_initialized():
            if ray.cluster_resources().get("CPU", 0.0) >= num_workers:
                return
            leave()  # our own has room only for what it was begun with
        template = None if make_template is None else make_template()
        constants: dict[str, Any] = {"ENABLE_RAY_CLUSTER": False}
        found_by: Mapping[str, str] = {}
        if template is not None:
            constants["SETUP_WORKER_FILENAME"] = str(LAUNCHER)
            found_by = template.environment
        with _environment(found_by), _constants(ray, constants), children_begun() as begun:
            _init_local(ray, num_workers)
        _guards.append(OrphanGuard(begun))


def _init_local(ray: Any, num_workers: int) -> None:
    ray.init(
        address="local",  # whatever RAY_ADDRESS names
        num_cpus=max(num_workers, logical_cpus()),
        object_store_memory=_OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        **_SETTINGS,
    )


def join(address: str) -> None:
    """Joins a cluster.

    Args:
        address: `auto` for the one that this machine belongs to, or `HOST:PORT`.

    Raises:
        EngineMissing: Ray is not installed.
        ConfigError: there is no such cluster, or it wants another token.
    """
    require_ray()
    with _environment(known_token(os.environ)):
        ray = _ray()
        head = _head(address)
        _check_listens(address, head)
        if ray.is_initialized():
            _check_is_ours(ray, address, head)
            return
        _check_answers(address, head)
        try:
            ray.init(address=head, **_SETTINGS)
        except ray.exceptions.RayError as error:
            raise _refused(address) from error  # nothing else was asked for yet
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _silent(address, str(error)) from error


def leave() -> None:
    """Leaves the cluster; one of our own ends with all its processes."""
    ray = _ray()
    if ray.is_initialized():
        ray.shutdown()
    while _guards:
        _guards.pop().release()


def nodes() -> Sequence[RayNode]:
    """Returns the machines that are alive, in an order that stays."""
    ray = _ray()
    free: Mapping[str, Mapping[str, float]] = ray._private.state.available_resources_per_node()
    found = [
        RayNode(
            node["NodeID"],
            node["NodeManagerAddress"],
            free.get(node["NodeID"], {}).get("CPU", 0.0),
            free.get(node["NodeID"], {}).get("GPU", 0.0),
            node["Resources"].get("memory", 0.0),
            _accelerator(node["Resources"]),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.node_id))


def _accelerator(resources: Mapping[str, float]) -> str | None:
    names = [name.removeprefix(_ACCELERATOR) for name in resources if name.startswith(_ACCELERATOR)]
    return names[0] if names else None


_SETTINGS: Final[Mapping[str, Any]] = {
    "include_dashboard": False,
    "log_to_driver": False,
    "configure_logging": False,
    "logging_level": logging.WARNING,
}


class _IntoOurLog(logging.Handler):
    """Keeps what Ray says of itself off the terminal: it is in the log of the run."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.info("Ray: %s", record.getMessage())


def import_ray() -> None:
    """Imports Ray, which is at once what it is to be here: quiet."""
    _ray()


def _ray() -> Any:
    import ray

    # They complain, whatever its handlers, that a thread beside the main one starts it, and say of
    # tokens what the guide and `doctor` do.
    for name in ("worker", "authentication.authentication_token_setup"):
        logging.getLogger(f"ray._private.{name}").setLevel(logging.ERROR)
    ray_logger = logging.getLogger("ray")
    if not any(isinstance(handler, _IntoOurLog) for handler in ray_logger.handlers):
        ray_logger.handlers[:] = [_IntoOurLog(logging.WARNING)]  # in place of the terminal
        ray_logger.propagate = False
    return ray


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets what Ray and the processes that it starts read, and puts back what was there."""
    variables = {**_QUIET, **variables}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _constants(ray: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Sets constants of Ray that no option sets, and puts back what was there.

    ENABLE_RAY_CLUSTER keeps it from taking this machine's outer address in place of the one it is
    given: the processes that it starts read the variable, but this one may have imported Ray before
    it was set, and may join another cluster later. SETUP_WORKER_FILENAME is the program that is to
    start workers.
    """
    constants = ray._private.ray_constants
    before = {name: getattr(constants, name) for name in values if hasattr(constants, name)}
    for name in before:
        setattr(constants, name, values[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(constants, name, value)


def _head(address: str) -> str:
    """Returns HOST:PORT of the cluster; `auto` never means another run's own."""
    if address != _AUTO:
        return address
    found = os.environ.get("RAY_ADDRESS") or _ray()._private.services.find_bootstrap_address(None)
    if not found or found == _AUTO:
        raise _silent(address, "this machine belongs to none")
    return found


def _check_listens(address: str, head: str) -> None:
    """Looks whether anybody listens there, for Ray itself would wait long."""
    host, _, port = head.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise _silent(address, f"{head!r} is no HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except OSError as error:
        raise _silent(address, f"{head}: {error}") from error


def _check_answers(address: str, head: str) -> None:
    """Asks for an answer in bounded time, since Ray would go on asking."""
    answer = probe(head)
    if answer == "refuses":
        raise _refused(address)
    if answer == "is silent":
        raise _silent(address, f"what listens at {head} does not answer as Ray {_version()} does")


def _version() -> str:
    return _ray().__version__


def _check_is_ours(ray: Any, address: str, head: str) -> None:
    """Refuses a second cluster beside the one that this process is in."""
    present = ray.get_runtime_context().gcs_address
    if head != present:
        raise ConfigError(
            f"cluster.ray = {address!r} is {head}, but this process is in the cluster {present}.",
            "A process is in one Ray cluster at a time.",
            "Leave the other one first (`ray.shutdown()`), or train in a process of its own.",
        )


def _silent(address: str, why: str) -> ConfigError:
    return ConfigError(
        f"cluster.ray = {address!r}: no Ray cluster answers ({why}).",
        "It is `auto` on a machine of the cluster, or the HOST:PORT that `ray start` printed.",
        "Start one with `ray start --head`, or leave `cluster` out to train on this machine.",
    )


def _refused(address: str) -> ConfigError:
    source, mode = token_source(os.environ), os.environ.get(MODE, "token")
    shown = "a token, and there is none here"
    if mode.lower() != "token":
        shown = f"a token, and {MODE}={mode} shows none"
    elif source is not None:
        shown = f"another token than that of {source}"
    return ConfigError(
        f"cluster.ray = {address!r}: the cluster asks for {shown}.",
        "A cluster takes work only from who shows the token that it was started with.",
        "Run `ray get-auth-token` on its head and put what it prints into ~/.ray/auth_token here, "
        "or set RAY_AUTH_TOKEN to it.",
    )
