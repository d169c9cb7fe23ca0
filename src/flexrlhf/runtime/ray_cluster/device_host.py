"""A process that holds one worker after another, and says what became of everything it was told.

Errors go back as values, so that the user sees one message and not the traces of every process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flexrlhf.core.errors import FlexError
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.runtime.ray_cluster.worker_log import LogLine, WorkerLog
from flexrlhf.runtime.workers import failure_in_run

if TYPE_CHECKING:
    from flexrlhf.runtime.devices.device_worker import DeviceWorker
    from flexrlhf.runtime.devices.link_end import LinkEnd
    from flexrlhf.runtime.devices.work_order import DeviceKind, Meeting, WorkOrder


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of a worker."""

    error: FlexError | None
    """What the user can do something about; None for anything else."""
    said: str
    """Type and message."""
    stack: str


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a piece of work; times are seconds since the epoch."""

    start_s: float
    end_s: float
    value: Any = None
    failure: Failure | None = None
    logged: tuple[LogLine, ...] = ()
    """What the process logged since its last report."""


@dataclass(slots=True)
class _Doing:
    """What a thread is at, for whoever asks why nothing comes."""

    what: str
    since_s: float


class DeviceHost:
    """The process of one device.

    Args:
        threads: that torch computes with.
    """

    def __init__(self, threads: int) -> None:
        import torch

        from flexrlhf.learning.training.memory import share_one_heap
        from flexrlhf.runtime.devices import device_worker  # noqa: F401 - so that runs begin soon

        share_one_heap()
        torch.set_num_threads(threads)
        self._log = WorkerLog()
        self._log.attach()
        self._working: int | None = None
        """The thread of tasks, which alone may remember layouts until its run ends."""
        self._worker: DeviceWorker | None = None
        self._link_end: LinkEnd | None = None
        self._doing: dict[int, _Doing] = {}

    def process_id(self) -> int:
        """Returns the number of this process, once it is ready."""
        return os.getpid()

    def live(self) -> None:
        """Never returns: whoever waits for it hears when the process ends."""
        threading.Event().wait()

    def open(self, order: WorkOrder, rank: int, host: str | None) -> Report:
        """Makes the worker of a run, and returns where its peers find it."""

        def work() -> str:
            from flexrlhf.runtime.devices.device_worker import DeviceWorker

            self._working = threading.get_ident()
            if self._worker is not None:
                self._worker.close()
            self._worker = DeviceWorker(order, rank, host)
            return self._worker.address

        return self._report("open", work)

    def speed(self, device: DeviceKind) -> Report:
        """Measures how fast this process computes."""
        import torch

        from flexrlhf.runtime.devices.speed import measured_speed

        return self._report("speed", lambda: measured_speed(torch.device(device)))

    def open_link(self, host: str | None, secret: str) -> Report:
        """Opens this machine's end of links that are measured, and returns its address."""
        from flexrlhf.runtime.devices.link_end import LinkEnd

        def work() -> str:
            self._link_end = LinkEnd(host, secret)
            return self._link_end.address

        return self._report("open_link", work)

    def measure_link(self, peer: str) -> Report:
        """Measures how fast parcels come from a peer's end."""
        assert self._link_end is not None, "the end is opened first"
        end = self._link_end
        return self._report("measure_link", lambda: end.measure(peer))

    def open_store(self, host: str, num_ranks: int) -> Report:
        """Opens the store in which process groups are agreed on, and returns its port."""
        from flexrlhf.runtime.devices.process_groups import open_store

        return self._report("open_store", lambda: open_store(host, num_ranks))

    def join(self, meeting: Meeting) -> Report:
        """Lets the worker meet the others and load its roles."""
        return self._report("loading models", lambda: self._here.join(meeting))

    def run(self, task: Task) -> Report:
        """Carries out a task."""
        return self._report(doing_of(task), lambda: self._here.run(task))

    def prefetch(self, transfer: Transfer) -> Report:
        """Takes over what a transfer brings."""
        return self._report(doing_of(transfer), lambda: self._here.prefetch(transfer))

    def finish(self, iteration: int) -> Report:
        """Lets the worker drop what was made in an iteration."""
        return self._report("finish", lambda: self._here.finish(iteration))

    def ask(self, method: str, arguments: tuple[Any, ...]) -> Report:
        """Runs a method of the worker."""
        return self._report(method, lambda: getattr(self._here, method)(*arguments))

    def describe(self) -> str:
        """Returns weights and experience here, what every thread is at, for how long, and where."""
        frames = sys._current_frames()
        now_s = time.time()
        lines = ["no run yet" if self._worker is None else self._worker.standing()]
        for thread, doing in list(self._doing.items()):
            stack = "".join(traceback.format_stack(frames[thread])) if thread in frames else ""
            lines.append(f"{doing.what}, for {now_s - doing.since_s:.1f} s:\n{stack}")
        return "\n".join(lines if self._doing else [*lines, "idle\n"])

    @property
    def _here(self) -> DeviceWorker:
        assert self._worker is not None, "a host is opened first"
        return self._worker

    def _report(self, doing: str, work: Callable[[], Any]) -> Report:
        thread, start_s = threading.get_ident(), time.time()
        self._doing[thread] = _Doing(doing, start_s)
        try:
            value = work()
            return Report(start_s, time.time(), value, logged=self._log.take())
        except BaseException as error:  # noqa: BLE001 - raised again where the run is driven
            kept = failure_in_run(error)
            failure = Failure(
                kept if isinstance(kept, FlexError) else None,
                f"{type(error).__name__}: {error}",
                "".join(traceback.format_exception(error)),
            )
            return Report(start_s, time.time(), failure=failure, logged=self._log.take())
        finally:
            self._doing.pop(thread, None)
            if thread != self._working:
                _forget_layouts()


def _forget_layouts() -> None:
    from flexrlhf.runtime.devices.process_groups import forget_layouts

    forget_layouts()


def doing_of(item: Task | Transfer) -> str:
    """Returns the words for a task or transfer that is in progress."""
    kind = "task" if isinstance(item, Task) else "transfer"
    words = f"{kind} {item.name} of iteration {item.iteration + 1}"
    version = item.weight_version if isinstance(item, Task) else None
    return words if version is None else f"{words}, weights {version}"
