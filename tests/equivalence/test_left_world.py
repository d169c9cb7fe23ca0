"""What is left of a run's process groups in a process that goes on to the next run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_RUN = """
import os
from pathlib import Path

from torch import nn

from flexrlhf.learning.models.role_mesh import RoleMesh, ShardDegrees
from flexrlhf.runtime.devices.process_groups import join_world, leave_world, open_store
from flexrlhf.runtime.devices.work_order import Meeting

def num_threads():
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)

def run():
    port = open_store("127.0.0.1", 1)
    join_world(Meeting(("127.0.0.1:1",), "127.0.0.1", port), 0, deadline_s=60)
    model = nn.Linear(1, 1)
    model.itself = [model]
    model.mesh = RoleMesh.create([0], ShardDegrees())
    return num_threads()

during = run()
leave_world()
print(during, num_threads())
"""


def test_groups_that_a_model_refers_to_end_with_the_run(tmp_path: Path):
    script = tmp_path / "run.py"
    script.write_text(_RUN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    during, left = map(int, said.stdout.split())
    assert during > 0
    assert left == 0
