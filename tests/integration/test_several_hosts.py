"""A Ray cluster of three hosts, each with an address of its own behind a limited link.

One machine plays them (examples/hosts), as root. What is run there is the command itself.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import command_server
import pytest
from run_differences import differences

from flexrlhf.config import load_config
from flexrlhf.config.resolution import resolve
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.profiled.profile import load_profile
from flexrlhf.planning.search.from_config import request_from

pytestmark = [
    pytest.mark.ray,
    pytest.mark.netns,
    pytest.mark.full,
    pytest.mark.timeout(900),
]

HOSTS = Path(__file__).parents[2] / "examples" / "hosts" / "hosts.py"
ADDRESSES = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
MBIT = 100
BYTES_PER_S = MBIT * 1e6 / 8
BURST_BYTES = 64 * 1024
ONE = {"nodes": 1, "devices_per_node": 1}
SOON_S = 180.0
"""A refusal takes 5 s on an idle machine, and 15 s where room is waited for."""
MODEL = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2}
"""About 3 MB of weights, a quarter of a second on the link."""


@dataclass(frozen=True)
class Ended:
    """A command that was run on the first host."""

    status: int
    said: str
    seconds: float


class Hosts:
    """The hosts, until the block ends."""

    def __init__(self) -> None:
        line = [sys.executable, str(HOSTS), "--mbit", str(MBIT), "--"]
        line += [sys.executable, command_server.__file__]
        self._process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        greeting = self._read()
        if not greeting.startswith("3 hosts"):
            self.close()
            assert greeting.startswith("skipped"), "the hosts did not start"
            pytest.skip(greeting.strip())

    def run(self, *command: object, limit_s: float = SOON_S, **variables: str | None) -> Ended:
        """Runs a command on the first host."""
        order = {"command": [*map(str, command)], "limit_s": limit_s, "variables": variables}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._read()))

    def train(self, config: Path, *options: object, **keys: Any) -> Ended:
        """Runs `flexrlhf train` there."""
        return self.run(sys.executable, "-m", "flexrlhf.cli", "train", config, *options, **keys)

    def close(self) -> None:
        """Ends them."""
        self._process.terminate()
        self._process.communicate(timeout=SOON_S)

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    pytest.importorskip("ray")
    hosts = Hosts()
    yield hosts
    hosts.close()


@pytest.fixture
def content(document) -> dict[str, Any]:
    """PPO with four models, of which one host trains, one scores and one generates."""
    content = document("ppo", dtype="float64")
    model = content["model"]["actor"]
    model["architecture"] = {**model["architecture"], **MODEL}
    content["model"]["reward"] = dict(model)
    content["training"]["learning_rate"] = content["training"]["critic_learning_rate"] = 1e-3
    content["run"]["checkpoint_every"] = 1
    content["cluster"] = {"ray": "auto", "workers": 3}
    content["placement"] = {"strategy": "disaggregated"}
    return content


def receipts(folder: Path) -> list[Mapping[str, Any]]:
    """Returns the receipts of all weights that were installed."""
    found = re.findall(r"installed (\{.*\})", (folder / "log.txt").read_text())
    return [ast.literal_eval(text) for text in found]


def test_three_hosts_train_as_one_device_does(hosts, content, config_file, tmp_path, train):
    folder, config = tmp_path / "run", config_file(content)
    begun = hosts.train(config, "--run-dir", folder, "--set", "training.iterations=2", limit_s=400)
    assert begun.status == 0, begun.said
    resumed = hosts.train(
        config, "--run-dir", folder, "--resume", "--set", "training.iterations=3", limit_s=400
    )
    assert resumed.status == 0, resumed.said

    workers = dict(re.findall(r"worker (\d) \(.*\) is process \d+ on (\S+)", log(folder)))
    assert sorted(workers.values()) == list(ADDRESSES)
    assert receipts(folder)
    for receipt in receipts(folder):
        for source, count in receipt["bytes_by_source"].items():
            assert source.partition(":")[0] in ADDRESSES
            assert (count - BURST_BYTES) / receipt["pull_s"] < BYTES_PER_S

    content["cluster"], content["placement"] = "auto", "auto"
    content["training"]["iterations"] = 3
    expected = train(content, "one").run_dir
    apart = differences(folder, expected)
    assert apart.same_tokens
    assert max(apart.metrics, apart.weights) < 1e-6, apart


MEASURE = """
import sys
from dataclasses import replace
from pathlib import Path
from flexrlhf.config.yaml_text import write_yaml
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.profiled.setting import typical_cpu
from flexrlhf.runtime.profiling import measure
from flexrlhf.runtime.ray_cluster import session
session.start_local(1)
session.leave()
profile = typical_cpu(Cluster.uniform("cpu-core", nodes=1, devices_per_node=1))
profile = replace(profile, joined=measure._joined("auto", print))
Path(sys.argv[1]).write_text(write_yaml(profile.to_document()))
"""
"""What `flexrlhf profile --ray auto` does, without the minute in which it measures one machine with
a Ray of its own."""


def test_links_are_measured_and_plans_reckon_with_them(hosts, content, config_file, tmp_path):
    file = tmp_path / "profile.yaml"
    measured = hosts.run(sys.executable, "-c", MEASURE, file)
    assert measured.status == 0, measured.said
    joined = load_profile(file).joined
    assert joined is not None
    assert [machine.address for machine in joined.machines] == list(ADDRESSES)
    assert len(joined.links) == 3
    for link in joined.links:
        assert link.bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.25)

    content["cluster"]["profile"] = str(file)
    config = config_file(content)
    without_links_s = sync_s(hosts, config, "--set", "cluster.links={bandwidth_gbytes_s: 1000}")
    models = request_from(resolve(load_config(config)), Cluster.uniform("A10", **ONE)).models
    num_bytes = models["actor"].weight_bytes + models["critic"].weight_bytes
    assert sync_s(hosts, config) - without_links_s == pytest.approx(
        num_bytes / BYTES_PER_S, rel=0.25
    )


def sync_s(hosts: Hosts, config: Path, *options: str) -> float:
    """Returns the seconds that a plan expects for new weights."""
    ended = hosts.run(sys.executable, "-m", "flexrlhf.cli", "plan", config, "--json", *options)
    assert ended.status == 0, ended.said
    return json.loads(ended.said)["plans"][0]["predicted"]["stage_s"]["sync"]


def log(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def assert_refused(ended: Ended, *words: str) -> None:
    """Checks that a command ended soon, with one message in three parts that holds the words."""
    assert ended.status == 2, ended.said
    assert ended.seconds < SOON_S
    lines = ended.said.strip().splitlines()
    assert len(lines) == 3, ended.said
    for word in words:
        assert word in lines[0]


def test_more_workers_than_there_are_cores(hosts, content, config_file):
    content["cluster"]["workers"] = 4
    ended = hosts.train(config_file(content))
    assert_refused(ended, "workers = 4", *(f"1 CPUs on {address}" for address in ADDRESSES))


def test_a_group_of_two_finds_no_host_with_two_cores(hosts):
    script = "from flexrlhf.runtime.ray_cluster.processes import RayProcesses\n"
    script += "RayProcesses('auto').start([2, 1])"
    ended = hosts.run(sys.executable, "-c", script)
    assert ended.seconds < SOON_S
    assert "PlanError: The plan needs 2 + 1 CPUs, each summand on one machine" in ended.said
    assert "1 CPUs on 10.77.0.3" in ended.said


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RAY_AUTH_TOKEN": "f" * 64}, "another token than that of RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_TOKEN": None, "RAY_AUTH_MODE": None}, "there is none here"),
        ({"RAY_AUTH_TOKEN": None}, "there is none here"),
        ({"RAY_AUTH_MODE": "disabled"}, "RAY_AUTH_MODE=disabled shows none"),
    ],
    ids=["wrong", "none", "none but asked for", "switched off"],
)
def test_without_the_token(hosts, content, config_file, tmp_path, variables, words):
    ended = hosts.train(config_file(content), HOME=str(tmp_path), **variables)
    assert_refused(ended, "the cluster asks for", words)


@pytest.mark.parametrize("address", ["10.77.0.1:9", "10.77.0.77:6379", "192.0.2.1:6379"])
def test_nobody_listens(hosts, content, config_file, address):
    content["cluster"] = {"ray": address}
    assert_refused(hosts.train(config_file(content)), address, "no Ray cluster answers")


def test_something_else_listens(hosts, content, config_file):
    # Only the connection counts; it never says a word.
    script = "import socket, sys, subprocess as s; l = socket.create_server(('127.0.0.1', 0)); "
    script += "a = f'cluster.ray=127.0.0.1:{l.getsockname()[1]}'; "
    script += "sys.exit(s.call([sys.executable, '-m', 'flexrlhf.cli', 'train', sys.argv[1], "
    script += "'--set', a]))"
    ended = hosts.run(sys.executable, "-c", script, config_file(content))
    assert_refused(ended, "no Ray cluster answers", "does not answer as Ray")
