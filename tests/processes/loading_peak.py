"""Measures how much memory a process takes to load its part of a model, each in a fork of its own.

Its standard input is JSON: a tiny model to warm up with, and cases. A world in which nothing is
sent stands for the other processes of the role. It prints, by case, the bytes by which resident
memory grew at most, and those of the part that is held.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.parallelise import ParallelModel, parallelise
from flexrlhf.learning.models.role_mesh import RoleMesh, ShardDegrees
from flexrlhf.learning.models.skeleton import policy_skeleton
from flexrlhf.learning.models.source import ModelSource

_WORLD = 4


def load(source: ModelSource, mesh: RoleMesh, *, whole: bool) -> ParallelModel:
    """Loads a frozen policy in parts, or as a whole which is split afterwards."""
    skeleton = None if whole else policy_skeleton(source)
    if skeleton is None:
        return parallelise(load_policy(source), mesh, trains=False)
    return parallelise(skeleton.model, mesh, trains=False, values=skeleton.values)


def own_bytes() -> int:
    """Returns the resident memory of this process without files, which come and go as they like."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


class Peak(threading.Thread):
    """Looks every few milliseconds how much memory there is."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most_bytes = 0
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.002):
            self.most_bytes = max(self.most_bytes, own_bytes())

    def end(self) -> int:
        """Returns the most bytes seen."""
        self._ended.set()
        self.join()
        return max(self.most_bytes, own_bytes())


def growth(source: ModelSource, degrees: dict[str, Any], *, whole: bool) -> tuple[int, int]:
    """Returns the most bytes taken, and those of the part that is held."""
    degree = ShardDegrees(**degrees)
    mesh = RoleMesh.create(range(degree.size), degree)
    gc.collect()
    before, peak = own_bytes(), Peak()
    peak.start()
    model = load(source, mesh, whole=whole)
    return peak.end() - before, sum(shard.tensor.nbytes for shard in model.shards().values())


def measured(case: dict[str, Any]) -> tuple[int, int]:
    """Runs a case in a fork, so that no other has left anything in its memory."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        found = growth(ModelSource(**case["source"]), case["degrees"], whole=case["whole"])
        os.write(sending, json.dumps(found).encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as report:
        answer = report.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def main() -> None:
    """Reads the cases and prints a line of JSON."""
    torch.set_num_threads(1)
    request = json.loads(sys.stdin.read())
    dist.init_process_group("fake", rank=0, world_size=_WORLD, store=FakeStore())
    for whole in (False, True):  # what is imported or cached on the way is no part of a model
        for degrees in ({"data": _WORLD, "zero_stage": 3}, {"tensor": 2, "pipeline": 2}):
            growth(ModelSource(**request["warm"]), degrees, whole=whole)
    print(json.dumps({name: measured(case) for name, case in request["cases"].items()}))


if __name__ == "__main__":
    main()
