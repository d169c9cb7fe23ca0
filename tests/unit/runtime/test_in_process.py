"""Workers in threads: one thing at a time, every wait has a deadline."""

from __future__ import annotations

import threading

import pytest

from flexrlhf.core.clock import WallClock
from flexrlhf.core.errors import ConfigError, RunFailed, WorkerLost
from flexrlhf.runtime.in_process import InProcessWorkers


class FakeWorker:
    """Waits in tasks until it is released."""

    def __init__(self):
        self.released = threading.Event()

    def run(self, task):
        self.wait_for_the_reward_server()
        return {}

    def wait_for_the_reward_server(self):
        self.released.wait(30)

    def add(self, *numbers):
        return sum(numbers)

    def complain(self, error):
        raise error

    def thread_name(self):
        return threading.current_thread().name


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def group(worker):
    group = InProcessWorkers({"main": worker}, WallClock())
    yield group
    worker.released.set()
    group.close()
    assert "worker-main" not in {thread.name for thread in threading.enumerate()}


def test_calls_run_in_the_thread_of_the_worker(group):
    assert group.ask("add", 1, 2, 3, deadline_s=5) == [6]
    assert group.ask("thread_name", deadline_s=5) == ["worker-main"]


def test_a_task_and_its_times(group, worker, make_graph):
    task = make_graph().tasks[0]
    worker.released.set()
    group.start(task)
    outcome = group.collect(5)
    assert outcome.item is task
    assert outcome.error is None
    (stint,) = outcome.stints
    assert stint.track == "main"
    assert 0 <= stint.start_s <= stint.end_s


def test_a_task_beyond_its_deadline_shows_where_it_hangs(group, make_graph):
    group.start(make_graph(2).tasks[0])
    with pytest.raises(WorkerLost) as caught:
        group.collect(0.1)
    message = str(caught.value)
    assert "Nothing has ended for 0.1 s" in message
    assert "worker 'main' with task generate/0 of iteration 3" in message
    assert "wait_for_the_reward_server" in message
    assert "run.task_deadline_s" in message


def test_a_call_beyond_its_deadline_shows_where_it_hangs(group):
    with pytest.raises(WorkerLost, match="worker 'main' with wait_for_the_reward_server") as caught:
        group.ask("wait_for_the_reward_server", deadline_s=0.1)
    assert "released.wait(30)" in str(caught.value)


def test_a_deadline_of_years_is_no_error(group, worker):
    """The system's own limit of a wait is less than what a config may ask for."""
    assert group.ask("add", 1, 1, deadline_s=1e15) == [2]


def test_errors_of_a_call_reach_the_caller(group):
    error = KeyError("x")
    with pytest.raises(KeyError) as caught:
        group.ask("complain", error, deadline_s=5)
    assert caught.value is error
    with pytest.raises(AttributeError):
        group.ask("no_such_method", deadline_s=5)
    assert group.ask("add", 1, deadline_s=5) == [1]


def test_wrong_input_in_a_call_is_a_failed_run(group):
    with pytest.raises(RunFailed, match="wrong"):
        group.ask("complain", ConfigError("wrong"), deadline_s=5)
