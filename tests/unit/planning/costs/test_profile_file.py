"""Profile files: written and read back, and every kind of mistake in them refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from flexrlhf.config.cluster import ClusterDescription, NodeGroup, ProfiledMachine
from flexrlhf.config.yaml_text import write_yaml
from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.profiled.constants import WholeCost
from flexrlhf.planning.costs.profiled.file_checks import PARTS
from flexrlhf.planning.costs.profiled.profile import Profile, load_profile, profile_from
from flexrlhf.planning.costs.profiled.setting import profile_of, typical_cpu

DOCUMENT: dict[str, Any] = {
    "form": 1,
    "made": {"at": "2026-11-30 01:00 UTC", "seconds": 40.0},
    "machine": {"device": "A CPU", "threads": 2, "memory_bytes": 8e9, "dtype": "float32"},
    "host_s": {
        "task": 1e-4,
        "answer": 2e-4,
        "barrier_sample": 3e-4,
        **{f"score_{part}": 1e-3 for part in PARTS},
        **{f"train_{part}": 2e-3 for part in PARTS},
        **{f"decode_{part}": 4e-4 for part in PARTS},
    },
    "update_s": {"step": 1e-3, "tensor": 1e-5, "param": 1e-9},
    "logit_s": {"score": 1e-9, "train": 2e-9, "draw": 3e-9},
    "memory": {
        "read_bytes_per_s": 1e10,
        "cache_bytes_per_s": 2e9,
        "process_bytes": 4e8,
        "allocator_overhead": 0.2,
        "logit_copies": 6.0,
    },
    "layer_flops_per_s": [
        {"width": 64, "score": 1e10, "train": 9e9},
        {"width": 128, "score": 2e10, "train": 1.8e10},
    ],
    "row_flops_per_s": [{"rows": 1, "speed": 5e9}, {"rows": 64, "speed": 5e10}],
    "wholes": {"generate": 1.2, "score": 1.1, "train": 1.05},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The document with one value replaced; None takes the key out."""
    document = copy.deepcopy(DOCUMENT)
    *parents, last = path.split(".")
    place: Any = document
    for part in parents:
        place = place[int(part) if part.isdecimal() else part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return document


def test_what_is_written_reads_back_equal(tmp_path: Path):
    file = tmp_path / "profile.yaml"
    profile = profile_from(DOCUMENT, "here")
    file.write_text(write_yaml(profile.to_document()))
    assert load_profile(file) == profile
    assert profile.to_document() == DOCUMENT


def test_a_file_from_before_wholes_were_measured_takes_them_to_be_their_parts() -> None:
    assert profile_from(changed("wholes", None), "here").costs.wholes == WholeCost()


def test_the_machine_is_a_cluster_of_one_device():
    cluster = profile_from(DOCUMENT, "here").cluster
    assert cluster.num_devices == 1
    device = cluster.device_type(0)
    assert device.name == "A CPU (2 threads)"
    assert device.memory_bytes == 8_000_000_000
    assert device.peak_flops("float32") == 5e10


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("form", 2, "form = 2: another form of the file. Right: 1."),
        ("host_s.task", None, "host_s.task: missing."),
        ("host_s.taks", 1.0, "host_s.taks: unknown key. Did you mean 'task'?"),
        ("host_s.score_layer", -1e-3, "host_s.score_layer = -0.001: not accepted here."),
        ("host_s.score_layer", float("nan"), "host_s.score_layer"),
        ("host_s.score_layer", "fast", 'host_s.score_layer = "fast": not accepted here.'),
        ("host_s", [1], "host_s: not a mapping."),
        ("memory.read_bytes_per_s", 1e30, "Right: from 1e+07 to 1e+14."),
        ("memory.process_bytes", True, "memory.process_bytes = true: not accepted here."),
        ("machine.threads", 0, "machine.threads = 0: out of range. Right: from 1 to 1024."),
        ("machine.dtype", "float12", 'machine.dtype = "float12": no number type.'),
        ("machine.device", "", 'machine.device = "": no name.'),
        ("machine", 3, "machine: not a mapping."),
        ("layer_flops_per_s", [], "layer_flops_per_s: no list of rows."),
        ("layer_flops_per_s.1.width", 32, "the column width does not ascend."),
        ("layer_flops_per_s.1.train", 1.0, "layer_flops_per_s.1.train = 1.0: not accepted here."),
        ("row_flops_per_s.0.rows", None, "row_flops_per_s.0.rows: missing."),
        ("wholes.score", 0.0, "wholes.score = 0.0: not accepted here. Right: from 0.1 to 10."),
        ("made", "yesterday", "made: not a mapping."),
        ("more", 1, "more: unknown key."),
    ],
)
def test_what_is_no_profile(path, value, said):
    with pytest.raises(ConfigError) as caught:
        profile_from(changed(path, value), "ours.yaml")
    assert said in str(caught.value)
    assert caught.value.wrong.startswith("ours.yaml is no profile of a machine: 1 problem")
    assert caught.value.do == "Measure one: flexrlhf profile --out profile.yaml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The file: empty."),
        ("[1, 2]", "The file: not a mapping."),
        ("nodes: []", "form = null"),
    ],
)
def test_files_of_another_kind(tmp_path: Path, text: str, said: str):
    file = tmp_path / "profile.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_profile(file)
    assert said in str(caught.value)


def test_several_mistakes_are_listed_at_once():
    document = changed("update_s.step", -1)
    document["logit_s"]["draw"] = "slow"
    with pytest.raises(ConfigError, match="2 problems"):
        profile_from(document, "ours.yaml")


def test_which_profile_a_setting_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "profile.yaml"
    file.write_text(write_yaml(DOCUMENT))
    assert profile_of(ProfiledMachine(profile=str(file))) == profile_from(DOCUMENT, "here")
    assert profile_of("cluster.yaml") is None
    assert profile_of(ClusterDescription(nodes=(NodeGroup(type="A10"),))) is None
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    found = profile_of("auto")
    assert isinstance(found, Profile)
    assert found.device.startswith("a processor like ")


def test_a_processor_like_the_packaged_one_has_this_machines_memory():
    cores = Cluster.uniform("cpu-core", nodes=1, devices_per_node=4)
    profile = typical_cpu(cores)
    assert profile.memory_bytes == 4 * 4 * 2**30
    one, two = profile.scaled_to(1, 1e9), profile.scaled_to(2, 1e9)
    assert two.costs.train_speed(256) == pytest.approx(2 * one.costs.train_speed(256))
    assert two.costs.train.layer_s == one.costs.train.layer_s


def test_a_process_holds_at_least_what_it_held_before():
    profile = profile_from(DOCUMENT, "here")
    assert profile.holding(5e8).costs.memory.process_bytes == 5e8
    assert profile.holding(1e8).costs.memory.process_bytes == 4e8
