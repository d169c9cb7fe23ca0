"""A run killed with SIGKILL at any moment and resumed is the run that was not killed, bit for bit.

The runs are processes forked from one that has torch imported, so that each starts in a moment.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import flexrlhf
from flexrlhf import app
from flexrlhf.config.schema import RunConfig

LIMIT_S = 120.0
NUM_ROWS = 9
"""Lines of metrics that the run writes: the first evaluation, then eight iterations."""
PRELOADED = [
    "flexrlhf.app",
    "flexrlhf.report.page",
    "flexrlhf.runtime.stages",
    "transformers.models.llama.modeling_llama",
]


class KilledRun:
    """A run in a folder, in processes that are killed again and again."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.folder = folder
        self._config = config

    def kill_when(self, is_time: Callable[[], bool]) -> bool:
        """Starts the run or goes on, kills it when it is time, and says if that was before its end.

        The time is looked at from the moment on when the run has its folder.
        """
        with self._process() as process:
            _wait(self.folder.exists, process)
            if _wait(is_time, process):
                process.kill()
            process.join(LIMIT_S)
            assert process.exitcode in (0, -signal.SIGKILL)
            return process.exitcode != 0

    def kill_after(self, num_rows: int, delay_s: float) -> bool:
        """Starts the run or goes on, and kills it some time after so many lines of metrics."""
        reached: list[float] = []

        def is_time() -> bool:
            if not reached and self._num_rows() >= num_rows:
                reached.append(time.monotonic())
            return bool(reached) and time.monotonic() - reached[0] >= delay_s

        return self.kill_when(is_time)

    def finish(self) -> float:
        """Starts the run or goes on, to its end; returns the seconds since it had its folder."""
        with self._process() as process:
            _wait(self.folder.exists, process)
            started = time.monotonic()
            process.join(LIMIT_S)
            assert process.exitcode == 0
        return time.monotonic() - started

    def _num_rows(self) -> int:
        metrics = self.folder / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    @contextmanager
    def _process(self) -> Iterator[Any]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        process = context.Process(
            target=app.train,
            args=(self._config,),
            kwargs={"run_dir": self.folder, "resume": self.folder.exists()},
        )
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join(LIMIT_S)


def _wait(is_time: Callable[[], bool], process: Any) -> bool:
    """Looks without a pause, since some moments are short; False if the process ended before."""
    end = time.monotonic() + LIMIT_S
    while not is_time():
        if not process.is_alive():
            return False
        assert time.monotonic() < end
    return True


@pytest.fixture(scope="module")
def content(document, world) -> dict[str, Any]:
    """PPO with everything that a checkpoint must hold: adaptive KL, and a reward that draws."""
    content = document("ppo", kl_target=0.1, kl_horizon=40)
    content["reward"]["functions"][0]["path"] = f"{world / 'rewards.py'}:noisy"
    content["data"]["evaluation"] = {"path": str(world / "held-out.jsonl"), "every": 3}
    content["training"] |= {"iterations": 8, "mini_batch_samples": 8}
    return content


@pytest.fixture(scope="module")
def unbroken(content, tmp_path_factory) -> tuple[Path, float]:
    """The folder of the run that nobody kills, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("unbroken")
    run = KilledRun(_config(content, folder), folder / "run")
    return run.folder, run.finish()


@pytest.fixture
def killed(content, tmp_path) -> KilledRun:
    """The same run, not yet started."""
    return KilledRun(_config(content, tmp_path), tmp_path / "run")


def _config(content: dict[str, Any], folder: Path) -> RunConfig:
    path = folder / "run.yaml"
    path.write_text(json.dumps(content))
    return flexrlhf.load_config(path)


def _kill_and_compare(killed: KilledRun, unbroken: tuple[Path, float], seed: int, check) -> None:
    expected, seconds = unbroken
    moments = random.Random(seed)
    killed.kill_after(moments.randrange(NUM_ROWS), moments.uniform(0, seconds / NUM_ROWS))
    killed.finish()
    check(killed.folder, expected)
    assert not [path for path in killed.folder.rglob(".*") if path.name != ".lock"]


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_a_random_moment(killed, unbroken, assert_same_run, seed):
    _kill_and_compare(killed, unbroken, seed, assert_same_run)


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("seed", range(3, 13))
def test_killed_at_ten_more_random_moments(killed, unbroken, assert_same_run, seed):
    _kill_and_compare(killed, unbroken, seed, assert_same_run)


@pytest.mark.chaos
def test_killed_again_and_again(killed, unbroken, assert_same_run):
    for num_rows in (2, 4, 4, 7):
        assert killed.kill_after(num_rows, 0)
    killed.finish()
    assert_same_run(killed.folder, unbroken[0])


@pytest.mark.chaos
@pytest.mark.parametrize("pattern", ["checkpoints/.iteration-*", ".model-*"])
def test_killed_while_a_folder_is_half_written(killed, unbroken, assert_same_run, pattern):
    def is_written() -> bool:
        return any(path.stat().st_ino not in earlier for path in killed.folder.glob(pattern))

    earlier: set[int] = set()
    while killed.kill_when(is_written):
        earlier = {path.stat().st_ino for path in killed.folder.glob(pattern)}
        if earlier:
            break
    killed.finish()
    assert_same_run(killed.folder, unbroken[0])
    assert not list(killed.folder.glob(pattern))


@pytest.mark.chaos
@pytest.mark.parametrize(
    "file", ["log.txt", "config.yaml", "metrics.jsonl", "checkpoints/iteration-8", "report.html"]
)
def test_killed_when_a_file_appears(killed, unbroken, assert_same_run, file):
    """Before the config, before anything is trained, before a checkpoint, before the models."""
    killed.kill_when((killed.folder / file).exists)
    killed.finish()
    assert_same_run(killed.folder, unbroken[0])


@pytest.mark.chaos
def test_killed_between_stages(staged, tmp_path, assert_same_run):
    config = _config(staged(), tmp_path)
    unbroken = KilledRun(config, tmp_path / "unbroken")
    unbroken.finish()
    killed = KilledRun(config, tmp_path / "run")
    assert killed.kill_when((killed.folder / "stages/sft/model").exists)
    assert killed.kill_when((killed.folder / "stages/rm/model").exists)
    assert killed.kill_when((killed.folder / "stages/ppo/metrics.jsonl").exists)
    killed.finish()
    for name in ("sft", "rm", "ppo"):
        assert_same_run(killed.folder / "stages" / name, unbroken.folder / "stages" / name)
