"""The executor drives the real scheduler: order, spans, and what a failed task means."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

import pytest

from flexrlhf.core.errors import ConfigError, FlexError, RunFailed, StaleWeights, WorkerLost
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.runtime.executor import Executor
from flexrlhf.runtime.in_process import InProcessWorkers
from flexrlhf.runtime.iteration_result import IterationResult
from flexrlhf.runtime.measurements import Measurement
from flexrlhf.runtime.workers import Outcome, Stint


@dataclass
class FakeGroup:
    """Does each task in one second, and fails where it is told to."""

    failing: dict[str, BaseException] = field(default_factory=dict)
    done: list[Task] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    _task: Task | None = None

    def start(self, item: Task) -> None:
        assert self._task is None, "one task at a time"
        self._task = item

    def collect(self, deadline_s: float) -> Outcome:
        assert self._task is not None
        task, self._task = self._task, None
        start_s = float(len(self.done))
        self.done.append(task)
        self.deadlines.append(deadline_s)
        measurements = {task.operation: Measurement(start_s)}
        stint = Stint("main", start_s, start_s + 1, measurements)
        return Outcome(task, [stint], self.failing.get(task.name))

    def finish(self, iteration: int) -> None:
        self.finished.append(iteration)


class FakeWorker:
    """Runs a function for one task and nothing for the others."""

    def __init__(self, name, action):
        self._name = name
        self._action = action

    def run(self, task):
        if task.name == self._name:
            self._action()
        return {}


class FakeClock:
    def __init__(self):
        self._now_s = 0.0

    def now_s(self) -> float:
        self._now_s += 1.0
        return self._now_s


def executor(group, start_iteration=0, deadline_s=10.0) -> Executor:
    return Executor(group, start_iteration=start_iteration, deadline_s=deadline_s)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "dpo", "sft", "reward_model"])
def test_one_group_does_the_tasks_in_the_order_of_the_graph(make_graph, algorithm):
    group, graph = FakeGroup(), make_graph(0, algorithm, epochs=2)
    executor(group).run(graph)
    assert [task.name for task in group.done] == [task.name for task in graph.tasks]


def test_every_task_comes_after_what_it_waits_for(make_graph):
    group, graph = FakeGroup(), make_graph(0, "ppo", rollout_micro_batches=3)
    executor(group).run(graph)
    position = {task.name: number for number, task in enumerate(group.done)}
    waits = graph.waits_for()
    assert all(position[before] < position[name] for name in waits for before in waits[name])


def test_iterations_follow_each_other_on_one_executor(make_graph):
    group = FakeGroup()
    loop = executor(group, start_iteration=3)
    for iteration in (3, 4, 5):
        loop.run(make_graph(iteration))
    versions = [task.weight_version for task in group.done if task.operation == "generate"]
    assert versions == [3, 4, 5]
    installed = [task.weight_version for task in group.done if task.operation == "install"]
    assert installed == [4, 5, 6]
    assert group.finished == [3, 4, 5]


def test_a_held_iteration_goes_to_its_barrier_and_no_further(make_graph):
    group = FakeGroup()
    loop = executor(group)
    loop.hold(1)
    for iteration in (0, 1):
        loop.submit(make_graph(iteration, "ppo", rollout_micro_batches=2))
    assert loop.finish_next().iteration == 0
    loop.reach_barrier(1)
    (held,) = loop.unfinished
    graph = make_graph(1, "ppo", rollout_micro_batches=2)
    before = [task.name for task in graph.tasks if task.stage in ("generate", "score")]
    assert sorted(held.done) == sorted(before)
    loop.reach_barrier(2)  # which is not there to be waited for
    loop.hold(2)
    assert loop.finish_next().iteration == 1
    assert [task.operation for task in group.done].count("advantage") == 2


def test_what_was_done_before_is_measured_and_not_done_again(make_graph):
    first, again = FakeGroup(), FakeGroup()
    loop = executor(first)
    loop.hold(0)
    loop.submit(make_graph())
    loop.reach_barrier(0)
    (held,) = loop.unfinished
    other = executor(again)
    other.submit(make_graph(), IterationResult.from_json(held.to_json()))
    result = other.finish_next()
    assert [task.name for task in (*first.done, *again.done)] == [
        t.name for t in make_graph().tasks
    ]
    assert {name for measured in result.measurements for name in measured} >= {
        "generate",
        "install",
    }
    assert len(result.spans) == len(make_graph().tasks)


def test_spans_and_measurements_are_those_of_the_tasks(make_graph):
    group, graph = FakeGroup(), make_graph(2)
    result = executor(group, start_iteration=2).run(graph)
    assert [report.keys() for report in result.measurements] == [
        {task.operation} for task in group.done
    ]
    for number, (task, span) in enumerate(zip(group.done, result.spans, strict=True)):
        assert (span.name, span.stage, span.role) == (task.name, task.stage, task.role)
        assert (span.track, span.iteration) == ("main", 3)  # people count iterations from 1
        assert (span.start_s, span.end_s) == (number, number + 1)


def test_the_deadline_reaches_every_wait(make_graph):
    group = FakeGroup()
    executor(group, deadline_s=7.5).run(make_graph())
    assert all(7.0 < deadline_s <= 7.5 for deadline_s in group.deadlines)


@pytest.mark.parametrize("name", ["generate/0", "rewards/reward/0", "advantage", "install/main"])
def test_an_unexpected_error_is_a_lost_worker_with_role_task_and_cause(make_graph, caplog, name):
    cause = ZeroDivisionError("division by zero")
    group = FakeGroup({name: cause})
    with pytest.raises(WorkerLost) as caught, caplog.at_level(logging.ERROR):
        executor(group, start_iteration=4).run(make_graph(4))
    message = f"Task {name} of iteration 5 failed: ZeroDivisionError: division by zero"
    assert str(caught.value).startswith(message)
    assert caught.value.__cause__ is cause
    assert group.done[-1].name == name  # nothing was started after it
    assert any(record.exc_info and record.exc_info[1] is cause for record in caplog.records)


@pytest.mark.parametrize(
    "error", [RunFailed("the loss is nan"), StaleWeights("old"), FlexError("x")]
)
def test_errors_that_say_what_to_do_pass_through(make_graph, error):
    with pytest.raises(type(error)) as caught:
        executor(FakeGroup({"advantage": error})).run(make_graph())
    assert caught.value is error


def in_process(action, name="rewards/reward/0") -> InProcessWorkers:
    return InProcessWorkers({"main": FakeWorker(name, action)}, FakeClock())


def raising(error: BaseException):
    def action():
        raise error

    return action


def test_a_thread_runs_the_same_graph(make_graph):
    group = in_process(lambda: None)
    result = executor(group).run(make_graph())
    group.close()
    assert [span.name for span in result.spans] == [task.name for task in make_graph().tasks]
    assert all(span.duration_s == 1.0 for span in result.spans)


def test_wrong_input_inside_a_run_is_a_failed_run(make_graph):
    """ConfigError promises that nothing was started, and has another exit status."""
    group = in_process(raising(ConfigError("bad row", "a good row", "repair it")))
    with pytest.raises(RunFailed) as caught:
        executor(group).run(make_graph())
    group.close()
    error = caught.value
    assert not isinstance(error, ConfigError)
    assert (error.wrong, error.right, error.do) == ("bad row", "a good row", "repair it")
    assert isinstance(error.__cause__, ConfigError)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError("too large")])
def test_whatever_user_code_raises_ends_the_run_and_not_the_thread(make_graph, error):
    group = in_process(raising(error))
    with pytest.raises(WorkerLost, match=f"rewards/reward/0 .*{type(error).__name__}"):
        executor(group).run(make_graph())
    assert "worker-main" in {thread.name for thread in threading.enumerate()}
    group.close()
