"""Cluster files and mappings: what they become, and every mistake with its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flexrlhf.config import build_config
from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.catalogue import device_type
from flexrlhf.planning.cluster.file_form import cluster_from, load_cluster
from flexrlhf.planning.cluster.link_catalogue import link_type
from flexrlhf.planning.cluster.setting import requested_cluster

EXAMPLES = Path(__file__).parents[4] / "examples" / "clusters"
OWN = {
    "memory_gib": 48,
    "memory_bandwidth_gbytes_s": 900,
    "tflops": {"float32": 40, "bfloat16": 150},
}


def problems_of(document: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        cluster_from(document, "ours.yaml")
    first, *problems, last = str(caught.value).splitlines()
    assert first.startswith("ours.yaml: ")
    assert last == "  Every key is described in docs/reference/config.md."
    return [line.removeprefix("  - ") for line in problems]


@pytest.mark.parametrize(
    ("name", "described", "num_devices"),
    [
        ("one-8xA100-80G", "1 x 8 A100-80G (all)", 8),
        ("four-8xA100", "4 x 8 A100-80G (all)", 32),
        ("sixteen-8xA100", "16 x 8 A100-80G (all)", 128),
        ("mixed-a100-v100", "1 x 8 A100-80G (train), 1 x 8 V100-32G (generate)", 16),
        ("128-8xH100", "128 x 8 H100-80G (all)", 1024),
        ("laptop", "1 x 1 RTX-4090 (all)", 1),
    ],
)
def test_the_examples(name, described, num_devices):
    cluster = load_cluster(EXAMPLES / f"{name}.yaml")
    assert str(cluster) == described
    assert cluster.num_devices == num_devices
    assert cluster.price_per_hour() > 0
    for first in cluster.nodes[:2]:
        for second in cluster.nodes[:2]:
            cluster.link_between(first, second)


def test_no_example_is_left_out():
    assert len(list(EXAMPLES.glob("*.yaml"))) == 6


def test_the_mixed_example_is_joined_by_ethernet():
    cluster = load_cluster(EXAMPLES / "mixed-a100-v100.yaml")
    assert cluster.link_between(*cluster.nodes) == link_type("Ethernet-100G")
    assert cluster.device_type(8) == device_type("V100-32G")


def test_own_devices_links_and_prices():
    cluster = cluster_from(
        {
            "nodes": [
                {"pool": "train", "count": 2, "devices": 2, "type": "mine"},
                {
                    "pool": "generate",
                    "count": 1,
                    "devices": 3,
                    "type": "V100-32G",
                    "link": {"bandwidth_gbytes_s": 64},
                    "price_per_hour": 1.5,
                },
            ],
            "links": [
                {"between": ["train", "train"], "link": "RoCE-400G"},
                {
                    "between": ["generate", "train"],
                    "link": {"bandwidth_gbytes_s": 12.5, "latency_us": 20},
                },
            ],
            "devices": {"mine": {**OWN, "host_bandwidth_gbytes_s": 20}},
        }
    )
    first, second, third = cluster.nodes
    assert [node.devices for node in cluster.nodes] == [(0, 1), (2, 3), (4, 5, 6)]
    assert first.device.memory_bytes == 48 * 2**30
    assert dict(first.device.flops) == {"float32": 40e12, "bfloat16": 150e12}
    assert first.device.price_per_hour is None
    assert first.link.bandwidth == 20e9  # over the host
    assert (third.link.bandwidth, third.link.latency_s) == (64e9, pytest.approx(1e-5))
    assert third.device.price_per_hour == 1.5
    assert third.device.memory_bytes == device_type("V100-32G").memory_bytes
    assert cluster.link_between(first, second).name == "RoCE-400G"
    joint = cluster.link_between(third, first)
    assert (joint.bandwidth, joint.latency_s) == (12.5e9, pytest.approx(2e-5))


def test_short_forms():
    cluster = cluster_from({"nodes": [{"type": "H800-80G", "devices": 4}]})
    (node,) = cluster.nodes
    assert node.pool == "H800-80G"
    assert node.link.bandwidth == 200e9


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"nodes": []}, "nodes = []: not accepted here. Right: a list of at least 1,"),
        ({"nodes": [{"type": "A10", "count": -2}]}, "nodes.0.count = -2: out of range."),
        ({"nodes": [{"type": "A10", "devices": 1e9}]}, "nodes.0.devices = 1000000000.0: not"),
        (
            {"nodes": [{"type": "A100-80GB"}]},
            "nodes.0.type = \"A100-80GB\": no known device. Did you mean 'A100-80G'?",
        ),
        ({"nodes": [{"type": "TPU"}]}, 'nodes.0.type = "TPU": no known device. Known: V100-32G,'),
        (
            {"nodes": [{"type": "min"}], "devices": {"mine": OWN}},
            "nodes.0.type = \"min\": no known device. Did you mean 'mine'?",
        ),
        (
            {"nodes": [{"type": "A10", "link": "PCIe9"}]},
            "nodes.0.link: Link 'PCIe9' is unknown. Did you mean 'PCIe",
        ),
        (
            {"nodes": [{"type": "H800-80G", "link": "NVLink4"}]},
            "450 GB/s per device, but H800-80G has at most 200 GB/s per device (NVLink4-H800).",
        ),
        (
            {"nodes": [{"type": "A10", "link": "Ethernet-10G"}]},
            'nodes.0.link = "Ethernet-10G": joins nodes, not the devices of one.',
        ),
        (
            {"nodes": [{"type": "A10", "count": 2}], "links": {"inside_pool": "NVLink5"}},
            'links.inside_pool = "NVLink5": joins the devices of one node.',
        ),
        (
            {"nodes": [{"type": "A10", "count": 2}]},
            "links.inside_pool: no link joins the nodes of pool A10. Right: a link such as",
        ),
        (
            {"nodes": [{"type": "A10"}, {"type": "B200"}], "links": {"inside_pool": "RoCE-100G"}},
            "links.between_pools: no link joins A10 and B200.",
        ),
        (
            {"nodes": [{"type": "A10"}, {"type": "A10"}], "links": {"inside_pool": "RoCE-100G"}},
            'nodes.1.pool = "A10": an earlier group has this name.',
        ),
        (
            {"nodes": [{"type": "A10"}], "devices": {"A10": OWN}},
            'devices = "A10": a device of the catalogue has this name.',
        ),
        (
            {
                "nodes": [{"type": "A10", "count": 10_000, "devices": 1024}],
                "links": {"inside_pool": "RoCE-100G"},
            },
            "nodes = 10240000: so many devices are described in all. Right: at most 65536.",
        ),
    ],
)
def test_mistakes(document, problem):
    (found,) = problems_of(document)
    assert problem in found


def test_a_link_matrix_names_pools_that_are_there_and_leaves_none_out():
    problems = problems_of(
        {
            "nodes": [{"pool": "train", "type": "A10", "count": 2}, {"type": "B200"}],
            "links": [
                {"between": ["tain", "B200"], "link": "RoCE-100G"},
                {"between": ["train", "B200"], "link": "RoCE-100"},
                {"between": ["B200", "train"], "link": "RoCE-200G"},
            ],
        }
    )
    unknown, wrong_link, twice, missing = problems
    assert unknown == (
        'links.0.between = ["tain", "B200"]: there is no pool tain. Did you mean \'train\'?'
    )
    assert wrong_link.startswith("links.1.link: Link 'RoCE-100' is unknown.")
    assert twice.startswith('links.2.between = ["B200", "train"]: an earlier entry joins them')
    assert missing == (
        "links: no link joins the nodes of pool train. Add: {between: [train, train], link: ...}."
    )


def test_a_pool_like_no_other_lists_the_pools():
    (problem,) = problems_of(
        {"nodes": [{"type": "A10"}], "links": [{"between": ["x", "A10"], "link": "RoCE-100G"}]}
    )
    assert problem.endswith("there is no pool x. Pools: A10.")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty."),
        ("# only words\n", "is empty."),
        ("{}", "is empty."),
        ("- {type: A10}", "holds no cluster."),
        ("eight A100", "holds no cluster."),
        ("nodes: [", "not valid YAML"),
        ("nodes: []\nnodes: []", "key 'nodes' is given twice"),
    ],
)
def test_files_that_are_no_cluster(tmp_path: Path, text, said):
    path = tmp_path / "ours.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_cluster(path)
    assert said in caught.value.wrong
    assert str(path) in caught.value.wrong
    assert caught.value.right
    assert caught.value.do


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"The cluster file .*nowhere\.yaml does not exist\."):
        load_cluster(tmp_path / "nowhere.yaml")


def test_the_setting_of_a_config(tmp_path: Path):
    document: dict[str, Any] = {
        "algorithm": {"name": "grpo"},
        "model": {"actor": {"shape": "llama-7b"}},
        "reward": {"functions": [{"name": "math"}]},
        "cluster": {"nodes": [{"type": "A10", "devices": 2}]},
    }
    inline = requested_cluster(build_config(document).cluster)
    assert str(inline) == "1 x 2 A10 (A10)"
    document["cluster"] = str(EXAMPLES / "laptop.yaml")
    assert requested_cluster(build_config(document).cluster).num_devices == 1
    assert requested_cluster("auto").num_devices >= 1
    document["cluster"] = {"nodes": [{"type": "A11"}]}
    with pytest.raises(ConfigError, match=r"nodes\.0\.type"):
        requested_cluster(build_config(document).cluster)
