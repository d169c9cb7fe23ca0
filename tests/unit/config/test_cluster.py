"""The section `cluster`: its forms, its mistakes, and that only `auto` can be trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flexrlhf.config import build_config, dump_config, load_config, require_files
from flexrlhf.config.cluster import (
    ClusterDescription,
    Links,
    NodeGroup,
    OwnLink,
    ProfiledMachine,
    RayCluster,
)
from flexrlhf.config.cluster_text import parse_cluster
from flexrlhf.config.reference import reference_page
from flexrlhf.config.schema_tree import knob_names
from flexrlhf.config.yaml_text import parse_yaml
from flexrlhf.core.errors import ConfigError

TWO_POOLS: dict[str, Any] = {
    "nodes": [
        {"pool": "train", "devices": 8, "type": "A100-80G", "link": "NVLink3"},
        {"pool": "generate", "count": 2, "type": "mine", "price_per_hour": 1.5},
    ],
    "links": [
        {
            "between": ["train", "generate"],
            "link": {"bandwidth_gbytes_s": 12.5, "latency_us": 20},
        },
        {"between": ["generate", "generate"], "link": "Ethernet-25G"},
    ],
    "devices": {
        "mine": {
            "memory_gib": 48,
            "memory_bandwidth_gbytes_s": 900,
            "tflops": {"float32": 40, "bfloat16": 150},
        }
    },
}


def problems_of(document: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build_config(document)
    return [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:-1]]


def test_an_inline_cluster_reads_back_as_it_was_written(ppo):
    ppo["cluster"] = TWO_POOLS
    config = build_config(ppo)
    assert isinstance(config.cluster, ClusterDescription)
    assert isinstance(config.cluster.links, tuple)
    assert config.cluster.links[0].link == OwnLink(bandwidth_gbytes_s=12.5, latency_us=20)
    assert config.cluster.devices["mine"].tflops.bfloat16 == 150
    assert config.cluster.devices["mine"].tflops.float8 is None
    assert build_config(parse_yaml(dump_config(config), "dump")) == config


def test_links_for_all_pools_are_a_section(ppo):
    ppo["cluster"] = {
        "nodes": [{"type": "A10", "count": 2}],
        "links": {"inside_pool": "Ethernet-10G"},
    }
    cluster = build_config(ppo).cluster
    assert cluster == ClusterDescription(
        nodes=(NodeGroup(type="A10", count=2),), links=Links(inside_pool="Ethernet-10G")
    )


def test_a_cluster_file_is_looked_for_beside_the_config(write, ppo, tmp_path: Path):
    (tmp_path / "ours.yaml").write_text("nodes: []")
    ppo["cluster"] = "ours.yaml"
    assert load_config(write(ppo)).cluster == str(tmp_path / "ours.yaml")


def test_a_cluster_file_that_is_nowhere_stays_as_written(ppo):
    ppo["cluster"] = "nowhere.yaml"
    assert build_config(ppo).cluster == "nowhere.yaml"


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        ({}, "cluster.nodes: missing. Right: a list of at least 1, each entry a section."),
        ({"nodes": []}, "cluster.nodes = []: not accepted here. Right: a list of at least 1,"),
        ([], "cluster = []: not accepted here. Right: auto, text or a section."),
        ({"nodes": [{}]}, "cluster.nodes.0.type: missing. Right: text."),
        ({"nodes": [{"type": "A10", "cout": 2}]}, "nodes.0.cout: unknown key. Did you mean"),
        ({"nodes": [{"type": "A10", "count": -1}]}, "nodes.0.count = -1: out of range. Right: a"),
        ({"nodes": [{"type": "A10", "count": 10**9}]}, "at least 1 and at most 10000."),
        ({"nodes": [{"type": "A10", "devices": 0}]}, "nodes.0.devices = 0: out of range."),
        ({"nodes": [{"type": "A10", "devices": 1.5}]}, "nodes.0.devices = 1.5: not accepted"),
        ({"nodes": [{"type": "A10", "price_per_hour": -1}]}, "price_per_hour = -1: out of range."),
        (
            {"nodes": [{"type": "A10", "link": {"bandwidth_gbytes_s": 3e11}}]},
            "cluster.nodes.0.link.bandwidth_gbytes_s = 300000000000.0: out of range.",
        ),
        (
            {"nodes": [{"type": "A10"}], "links": {"inside": "NVLink3"}},
            "cluster.links.inside: unknown key. Did you mean 'inside_pool'?",
        ),
        (
            {"nodes": [{"type": "A10"}], "links": [{"between": ["a"], "link": "x"}]},
            "cluster.links.0.between.1: missing.",
        ),
        (
            {"nodes": [{"type": "A10"}], "devices": {"a": 3}},
            "cluster.devices.a = 3: not accepted here. Right: a section.",
        ),
        (
            {"nodes": [{"type": "A10"}], "devices": [1]},
            "cluster.devices = [1]: not accepted here. Right: a section for each name.",
        ),
    ],
)
def test_wrong_descriptions(ppo, cluster, problem):
    ppo["cluster"] = cluster
    (found,) = problems_of(ppo)
    assert problem in found


def test_all_mistakes_of_an_own_device_are_listed_under_its_name(ppo):
    ppo["cluster"] = {
        "nodes": [{"type": "A10"}],
        "devices": {"mine": {"memory_gib": "48", "tflops": {"bfloat16": 0}}},
    }
    assert [problem.partition(":")[0] for problem in problems_of(ppo)] == [
        'cluster.devices.mine.memory_gib = "48"',
        "cluster.devices.mine.memory_bandwidth_gbytes_s",
        "cluster.devices.mine.tflops.float32",
        "cluster.devices.mine.tflops.bfloat16 = 0",
    ]


def test_a_description_that_stands_alone_names_its_own_keys():
    assert parse_cluster(TWO_POOLS, "x").nodes[1].type == "mine"
    with pytest.raises(ConfigError) as caught:
        parse_cluster({"nodes": [{"typ": "A10"}]}, "ours.yaml")
    assert str(caught.value).splitlines() == [
        "ours.yaml: 2 problems.",
        "  - nodes.0.type: missing. Right: text.",
        "  - nodes.0.typ: unknown key. Did you mean 'type'?",
        "  Every key is described in docs/reference/config.md.",
    ]


@pytest.mark.parametrize("cluster", ["some.yaml", {"nodes": [{"type": "A10"}]}])
def test_only_this_machine_can_be_trained_on(ppo, cluster):
    ppo["cluster"] = cluster
    with pytest.raises(ConfigError, match=r"cluster: described, which is enough to plan\. Train"):
        require_files(build_config(ppo))


def test_a_profile_is_looked_for_beside_the_config(write, ppo, tmp_path: Path):
    (tmp_path / "ours.yaml").touch()
    ppo["cluster"] = {"profile": "ours.yaml"}
    cluster = load_config(write(ppo)).cluster
    assert cluster == ProfiledMachine(profile=str(tmp_path / "ours.yaml"))


def test_a_joined_cluster_names_what_joins_it_and_its_profile(write, ppo, tmp_path: Path):
    (tmp_path / "ours.yaml").touch()
    ppo["cluster"] = {"ray": "auto", "profile": "ours.yaml", "links": {"bandwidth_gbytes_s": 1.5}}
    cluster = load_config(write(ppo)).cluster
    file = str(tmp_path / "ours.yaml")
    assert cluster == RayCluster(ray="auto", profile=file, links=OwnLink(bandwidth_gbytes_s=1.5))
    ppo["cluster"] = {"ray": "auto", "profile": "nowhere.yaml"}
    with pytest.raises(ConfigError, match=r"cluster\.profile = .nowhere\.yaml.: does not exist"):
        require_files(build_config(ppo))


def test_a_profile_that_is_nowhere_cannot_be_trained_with(ppo):
    ppo["cluster"] = {"profile": "nowhere.yaml"}
    with pytest.raises(ConfigError, match=r"cluster\.profile = .nowhere\.yaml.: does not exist"):
        require_files(build_config(ppo))


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        ({"profile": ""}, 'cluster.profile = "": not accepted here. Right: text.'),
        ({"profile": "p.yaml", "node": []}, "cluster.node: unknown key. Did you mean 'nodes'?"),
    ],
)
def test_wrong_profiles(ppo, cluster, problem):
    ppo["cluster"] = cluster
    with pytest.raises(ConfigError) as caught:
        build_config(ppo)
    assert problem in str(caught.value)


def test_keys_below_a_name_of_the_users_choice_are_knobs():
    assert "cluster.devices.NAME.tflops.bfloat16" in knob_names()
    assert "cluster.nodes[].link.latency_us" in knob_names()


def test_the_reference_shows_all_forms_of_the_links_once():
    page = reference_page()
    assert page.count("### `cluster.links`\n") == 1
    links = page.partition("### `cluster.links`\n")[2].partition("\n###")[0]
    assert links.count("| key | value |") == 3
    assert "`inside_pool`" in links
    assert "`between`" in links
