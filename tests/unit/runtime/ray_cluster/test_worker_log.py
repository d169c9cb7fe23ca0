"""What workers log reaches the log of the run, each warning once."""

from __future__ import annotations

import logging

from flexrlhf.core.errors import StaleWeights
from flexrlhf.runtime.ray_cluster.worker_log import LogLine, RelayedLog, WorkerLog, with_place


def record(name: str, level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord(name, level, "file", 1, message, (), None)


def test_our_messages_and_the_warnings_of_others_are_kept_once():
    log = WorkerLog()
    log.emit(record("flexrlhf.runtime", logging.INFO, "ours"))
    log.emit(record("transformers", logging.INFO, "chatter"))
    log.emit(record("transformers", logging.WARNING, "theirs"))
    assert [line.message for line in log.take()] == ["ours", "theirs"]
    assert log.take() == ()


def test_a_warning_of_all_workers_is_written_once(caplog):
    relayed = RelayedLog()
    with caplog.at_level(logging.INFO):
        for rank in range(3):
            relayed.write(rank, [LogLine(logging.WARNING, "flexrlhf", "slow")])
        relayed.write(1, [LogLine(logging.ERROR, "flexrlhf", "bad")] * 2)
    assert caplog.messages == ["worker 0: slow", "worker 1: bad", "worker 1: bad"]


def test_an_error_keeps_its_kind_and_gets_its_place():
    error = with_place(StaleWeights("Version 3.", "It is 4.", "Wait."), "worker 1 (actor)")
    assert isinstance(error, StaleWeights)
    assert str(error) == "worker 1 (actor): Version 3.\n  It is 4.\n  Wait."
