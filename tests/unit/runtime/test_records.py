"""Lines of metrics and samples: appended, cut back on resume, torn by a kill, on a full disk."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from flexrlhf.core.errors import RunFailed
from flexrlhf.runtime.records import RunRecords, read_rows, sample_row


@pytest.fixture
def records(tmp_path: Path) -> RunRecords:
    return RunRecords(tmp_path, [])


def always(iteration: int) -> bool:
    """Every iteration is evaluated."""
    return True


def iterations(path: Path) -> list[int]:
    return [row["iteration"] for row in read_rows(path)]


def test_one_line_per_iteration(records, tmp_path):
    records.write(1, {"reward/mean": 0.5, "samples": 8})
    records.write(2, {"reward/mean": 0.25})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"iteration": 1, "reward/mean": 0.5, "samples": 8},
        {"iteration": 2, "reward/mean": 0.25},
    ]


def test_numbers_come_back_as_they_were(records, tmp_path):
    value = 0.1 + 0.2
    records.write(1, {"loss/policy": value})
    assert read_rows(tmp_path / "metrics.jsonl")[0]["loss/policy"] == value


def test_the_first_few_answers_are_kept(records, tmp_path, make_sample):
    samples = [make_sample(n, 3 + n, text="línea\u2028\n\x1cend") for n in range(2)]
    for sample in samples:
        sample.reward, sample.reward_parts = 1.5, {"math": 1.0, "length": 0.5}
    records.write_samples(3, [sample_row(sample) for sample in samples], "train")
    rows = read_rows(tmp_path / "samples.jsonl")
    assert [row["sample_id"] for row in rows] == [0, 1]
    assert rows[1] == {
        "iteration": 3,
        "kind": "train",
        "sample_id": 1,
        "prompt": "red green",
        "response": "línea\u2028\n\x1cend",
        "reward": 1.5,
        "reward_parts": {"math": 1.0, "length": 0.5},
        "finished": True,
        "response_tokens": 4,
    }


def test_a_resumed_run_drops_what_came_after_its_checkpoint(records, tmp_path, make_sample):
    for iteration in range(5):
        records.write(iteration, {"x": 1.0})
        records.write_samples(iteration, [sample_row(make_sample())], "train")
    records.restart_after(2, always)
    assert iterations(tmp_path / "metrics.jsonl") == [0, 1, 2]
    assert iterations(tmp_path / "samples.jsonl") == [0, 1, 2]
    records.write(3, {"x": 2.0})
    assert iterations(tmp_path / "metrics.jsonl") == [0, 1, 2, 3]


def test_an_evaluation_that_is_due_no_longer_is_forgotten(records, tmp_path, make_sample):
    """Iteration 3 was the last of the first start, and was evaluated for that alone."""
    for iteration in (2, 3):
        records.write(iteration, {"reward/mean": 0.5, "eval/reward": 1.0})
        records.write_samples(iteration, [sample_row(make_sample())], "train")
        records.write_samples(iteration, [sample_row(make_sample())], "evaluation")
    records.restart_after(3, lambda iteration: iteration % 2 == 0)
    assert read_rows(tmp_path / "metrics.jsonl") == [
        {"iteration": 2, "reward/mean": 0.5, "eval/reward": 1.0},
        {"iteration": 3, "reward/mean": 0.5},
    ]
    kept = [(row["iteration"], row["kind"]) for row in read_rows(tmp_path / "samples.jsonl")]
    assert kept == [(2, "train"), (2, "evaluation"), (3, "train")]


def test_a_run_that_starts_anew_keeps_nothing(records, tmp_path):
    records.write(0, {"eval/reward": 1.0})
    records.restart_after(-1, always)
    assert iterations(tmp_path / "metrics.jsonl") == []


def test_restarting_without_any_file(records, tmp_path):
    records.restart_after(3, always)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", [1, 8, 30])
def test_a_line_that_a_kill_has_torn_is_left_out(records, tmp_path, length):
    path = tmp_path / "metrics.jsonl"
    for iteration in (1, 2, 3):
        records.write(iteration, {"reward/mean": 0.123456, "loss/policy": 0.654321})
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:length])
    assert iterations(path) == [1, 2]
    records.restart_after(2, always)
    records.write(3, {"reward/mean": 1.0})
    assert iterations(path) == [1, 2, 3]
    assert path.read_text().startswith("".join(lines[:2]))


@pytest.mark.parametrize("write", ["write", "write_samples"])
def test_a_disk_that_takes_no_more(records, tmp_path, make_sample, write):
    for name in ("metrics.jsonl", "samples.jsonl"):
        (tmp_path / name).symlink_to("/dev/full")
    arguments = {"write": ({"x": 1.0},), "write_samples": ([sample_row(make_sample())], "train")}[
        write
    ]
    with pytest.raises(RunFailed, match=r"Writing .*jsonl failed: No space left") as caught:
        getattr(records, write)(1, *arguments)
    assert "--resume" in caught.value.do


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_gets_every_metric(tmp_path):
    records = RunRecords(tmp_path, ["tensorboard"])
    for iteration in (1, 2):
        records.write(iteration, {"reward/mean": 0.5 * iteration, "samples": 8})
    assert scalars(tmp_path, "reward/mean") == [(1, 0.5), (2, 1.0)]  # before the run ends
    records.close()
    assert scalars(tmp_path, "samples") == [(1, 8.0), (2, 8.0)]


def test_tensorboard_forgets_what_an_interrupted_run_wrote_after_its_checkpoint(tmp_path):
    for first, value in ((1, 0.25), (3, 0.75)):
        records = RunRecords(tmp_path, ["tensorboard"])
        for iteration in range(first, first + 4):
            records.write(iteration, {"x": value})
        records.close()
    expected = [(1, 0.25), (2, 0.25), (3, 0.75), (4, 0.75), (5, 0.75), (6, 0.75)]
    assert scalars(tmp_path, "x") == expected


def test_a_tracker_on_a_full_disk(small_disk):
    """No thread of the tracker may print a traceback of its own, either."""
    records = RunRecords(small_disk, ["tensorboard"])
    records.write(1, {"x": 1.0})
    (small_disk / "metrics.jsonl").unlink()
    (small_disk / "metrics.jsonl").symlink_to("/dev/null")
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "filler").write_bytes(bytes(4 << 20))
    with pytest.raises(RunFailed, match="No space left"):
        records.write(2, {f"metric/{n}": 1.0 for n in range(1000)})
    with suppress(RunFailed):  # where something of the last line is still to be written
        records.close()


def test_a_tracker_that_was_never_written_to_leaves_nothing(tmp_path):
    RunRecords(tmp_path, ["tensorboard"]).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"{", b"5", b"[]", b"\xff\xfe", b"{}", b"[" * 100_000])
def test_a_damaged_line_costs_no_other(tmp_path: Path, damage):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 1}\n' + damage + b'\n{"iteration": 2}\n{"iterat')
    assert iterations(path) == [1, 2]
    RunRecords(tmp_path, []).restart_after(1, always)
    assert path.read_bytes() == b'{"iteration": 1}\n'
