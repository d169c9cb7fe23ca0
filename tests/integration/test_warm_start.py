"""Workers that are forks of a process that has imported everything, and what becomes of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from train_command import START_S, TrainCommand

from flexrlhf.runtime.ray_cluster.processes import RayProcesses
from flexrlhf.runtime.ray_cluster.warm_start.launcher import SOCKET
from flexrlhf.runtime.ray_cluster.warm_start.template import LAUNCHER, WorkerTemplate

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

_TEMPLATE = "warm_start.template_process"
_SHOWN = (
    "import os, random, sys, numpy, torch\n"
    "print(os.getppid(), os.getcwd(), sys.argv, os.environ['GIVEN'], 'HIDDEN' in os.environ,\n"
    "      os.environ['OMP_NUM_THREADS'], torch.get_num_threads(), os.getsid(0) == os.getpid(),\n"
    "      torch.cuda.is_initialized(), os.readlink('/proc/self/fd/0'))\n"
    "print(random.random(), numpy.random.rand(), torch.initial_seed())\n"
)
"""What a worker would find: its parent and its environment, then its random numbers."""


@pytest.fixture
def template(monkeypatch) -> Iterator[WorkerTemplate]:
    """A template in whose environment a variable is that no worker may see."""
    monkeypatch.setenv("HIDDEN", "1")
    template = WorkerTemplate()
    yield template
    template.close()


@pytest.fixture
def worker(tmp_path) -> Callable[..., subprocess.Popen[str]]:
    """Starts the launcher as Ray does, with a program in place of Ray's worker."""
    (tmp_path / "folder").mkdir()

    def start(program: str, environment: dict[str, str]) -> subprocess.Popen[str]:
        file = tmp_path / "default_worker.py"
        file.write_text(program)
        return subprocess.Popen(
            [sys.executable, str(LAUNCHER), str(file), "--argument=a b", "--language=PYTHON"],
            env={"PATH": os.environ["PATH"], "GIVEN": "é", "OMP_NUM_THREADS": "1", **environment},
            cwd=tmp_path / "folder",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def test_a_fork_finds_what_a_process_of_its_own_would(template, worker, tmp_path):
    warm = worker(_SHOWN, template.environment).communicate(timeout=START_S)[0].splitlines()
    again = worker(_SHOWN, template.environment).communicate(timeout=START_S)[0].splitlines()
    parent, _, found = warm[0].partition(" ")
    assert int(parent) == template.process_id
    arguments = [str(tmp_path / "default_worker.py"), "--argument=a b"]
    assert found == f"{tmp_path / 'folder'} {arguments} é False 1 1 True False /dev/null"
    numbers, others = warm[1].split(), again[1].split()
    assert numbers[0] != others[0]
    assert numbers[1] != others[1]
    assert numbers[2] == others[2]  # torch's own start is a fixed number


@pytest.mark.parametrize("reason", ["no template", "it has ended", "it is no template"])
def test_without_a_template_the_launcher_becomes_the_worker(reason, worker, tmp_path):
    environment: dict[str, str] = {}
    if reason == "it has ended":
        template = WorkerTemplate()
        environment = template.environment
        template.close()
    elif reason == "it is no template":
        environment = {SOCKET: str(tmp_path)}
    plain = worker("import os; print(os.getpid(), flush=True); os._exit(7)", environment)
    said = plain.communicate(timeout=START_S)[0]
    assert said == f"{plain.pid}\n"
    assert plain.returncode == 7


def test_a_template_that_fails_leaves_plain_workers(worker, monkeypatch, tmp_path):
    broken = tmp_path / "broken" / "transformers"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('broken')")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent), prepend=os.pathsep)
    template = WorkerTemplate()
    plain = worker("import os; print(os.getpid())", template.environment)
    assert plain.communicate(timeout=START_S)[0] == f"{plain.pid}\n"
    template.close()


@pytest.mark.parametrize("ends", ["launcher", "worker", "template"])
def test_launcher_and_fork_and_its_children_end_together(ends, template, worker):
    program = (
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    launched = worker(program, template.environment)
    assert launched.stdout is not None
    fork, child = map(psutil.Process, map(int, launched.stdout.readline().split()))
    victim = {"launcher": launched.pid, "worker": fork.pid, "template": template.process_id}
    os.kill(victim[ends], signal.SIGKILL)
    launched.wait(5)
    _, alive = psutil.wait_procs([fork, child], timeout=5)
    assert not alive
    launched.stdout.close()


@pytest.fixture
def content(document) -> dict[str, Any]:
    """PPO on two workers."""
    content = document("ppo")
    content["training"]["iterations"] = 500
    content["cluster"] = {"workers": 2}
    content["placement"] = {"strategy": "colocated"}
    return content


def test_a_template_ends_with_the_process_that_began_it_amid_its_imports():
    program = (
        "import os\n"
        "from flexrlhf.runtime.ray_cluster.warm_start.template import WorkerTemplate\n"
        "print(WorkerTemplate().process_id, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    ).stdout
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(said)).wait(5)


def test_workers_of_a_run_are_forks_of_one_process(content, config_file, tmp_path):
    command = TrainCommand(config_file(content), tmp_path / "run")
    try:
        command.wait_for_rows(1)
        workers = command.workers
        assert len(workers) == 2
        (template,) = {worker.parent() for worker in workers}
        assert template is not None
        assert any(_TEMPLATE in part for part in template.cmdline())
        assert template.num_threads() == 1
        template.kill()  # as if memory were short: its workers go, and are named
        assert command.wait(60) == 1
        assert any(f"number {w.pid}, ended" in command.said for w in workers)
        assert "Traceback" not in command.said
        command.assert_gone()
    finally:
        command.end()


def test_where_no_socket_can_be_there_is_no_template_and_no_folder(tmp_path, monkeypatch):
    far = tmp_path / ("far" * 40)
    far.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(far))
    with pytest.raises(OSError, match="too long"):
        WorkerTemplate()
    assert not list(far.iterdir())
    assert RayProcesses()._template is None


_TWO_RAYS = """
import psutil
from flexrlhf.runtime.ray_cluster.processes import RayProcesses

processes = RayProcesses()
for count in (1, 3):
    processes.start([count])
    parents = {psutil.Process(member.process_id).ppid() for member in processes.members}
    print(parents == {processes._template.process_id}, *parents)
processes.close()
"""


def test_a_larger_ray_has_forks_of_a_template_of_its_own():
    """Those of the first would look for a raylet that is gone. In a process with no other Ray."""
    command = [sys.executable, "-c", _TWO_RAYS]
    run = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=True)
    (first_is_parent, first), (second_is_parent, second) = (
        line.split() for line in run.stdout.splitlines()
    )
    assert first_is_parent == second_is_parent == "True"
    assert first != second
    assert not psutil.pid_exists(int(first))
