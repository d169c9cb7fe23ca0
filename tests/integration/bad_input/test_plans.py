"""Requests that cannot be planned: what is wrong, with the numbers, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ONE_NODE = {"nodes": [{"pool": "all", "count": 1, "devices": 8, "type": "A100-80G"}]}


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    """PPO with four small models on one node of eight devices."""
    content = {
        "algorithm": {"name": "ppo"},
        "model": {"actor": {"shape": "smollm2-135m"}, "reward": {"shape": "smollm2-135m"}},
        "data": {"max_prompt_tokens": 64},
        "rollout": {"max_new_tokens": 64},
        "training": {"prompts_per_iteration": 64},
        "cluster": ONE_NODE,
    }
    path = tmp_path / "request.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def unplanned(refused: Callable[..., str], request_file: Path) -> Callable[..., str]:
    """Asks for a plan with some keys set, and returns the complaint."""

    def run(*assignments: str, options: tuple[str, ...] = ()) -> str:
        settings = [word for text in assignments for word in ("--set", text)]
        return refused("plan", request_file, *settings, *options)

    return run


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("{nodes: [{count: 1, devices: 8, type: A100-80}]}", "Did you mean 'A100-80G'?"),
        ("{nodes: []}", "a list of at least 1"),
        ("{nodes: [{count: 0, devices: 8, type: A100-80G}]}", "at least 1"),
        ("{nodes: [{count: 1, devices: 8, type: A100-80G, link: NVLink33}]}", "'NVLink3'?"),
        ("{nodes: [{count: 2, devices: 8, type: A100-80G}]}", "no link joins the nodes"),
        ("nowhere.yaml", "nowhere.yaml does not exist"),
        ("{profile: nowhere.yaml}", "nowhere.yaml does not exist"),
        ("{profile: profile.yaml, nodes: []}", "cluster.nodes: unknown key"),
    ],
)
def test_a_cluster_that_is_none(unplanned, cluster, said):
    assert said in unplanned(f"cluster={cluster}")


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        (("tensor_parallel=3",), "tensor_parallel = 3 does not divide its 8 devices"),
        (
            ("tensor_parallel=8", "pipeline_parallel=2"),
            "tensor_parallel 8 x pipeline_parallel 2 does not make its 8 devices",
        ),
    ],
)
def test_degrees_that_do_not_divide_the_devices(unplanned, degrees, said):
    keys = [f"placement.roles.actor.{degree}" for degree in degrees]
    err = unplanned(*keys, options=("--strategy", "colocated"))
    assert said in err
    assert "Algorithm, cluster and degrees" in err


def test_models_that_fit_nowhere(unplanned):
    shapes = [f"model.{role}.shape=llama3.1-405b" for role in ("actor", "reward")]
    err = unplanned(*shapes, options=("--strategy", "colocated"))
    assert "colocated: Out of memory: actor" in err
    assert "GiB of 75.2 GiB" in err
    assert "lacks" in err
    assert "model.ROLE.lora" in err


def test_a_time_that_no_plan_keeps_to(unplanned):
    err = unplanned("placement.max_p99_iteration_s=0.001")
    assert "more than placement.max_p99_iteration_s = 0.001" in err
    assert "Raise it" in err


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        (["ratio=[0.7, 0.7, 0.5, 0.3]"], "The nearest ratio that does: [0.7, 0.5, 0.5, 0.3]"),
        (["ratio=[1, 1, 0.5]"], "3 shares for the 4 models of ppo"),
        (["pools={train: 0.5, generate: 0.3}"], "the shares sum to 0.8"),
        (
            ["ratio=[1, 1, 0.5, 0.5]", "pools={train: 0.5, generate: 0.5}"],
            "given beside placement.pools",
        ),
        (["ratio=[1, 1, 0.5, 0.5]", "strategy=disaggregated"], "does not leave placement.ratio"),
        (["devices={actor: [0, 9]}"], "no place for critic, reference, reward"),
        (
            ["devices={actor: [9], critic: [0], reference: [0], reward: [0]}"],
            "There is no device 9",
        ),
    ],
)
def test_layouts_that_contradict_themselves(unplanned, assignments, said):
    assert said in unplanned(*(f"placement.{text}" for text in assignments))


@pytest.mark.parametrize(
    ("strategy", "said"),
    [("interleaved", "interleaved_1"), ("interleaved_2", "The cluster has one node")],
)
def test_a_strategy_that_cannot_be_had(unplanned, strategy, said):
    assert said in unplanned(options=("--strategy", strategy))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "config.json cannot be read"),
        ("{", "config.json is no JSON"),
        ("[1]", "holds no JSON object"),
        (json.dumps({"model_type": "llama"}), "lacks hidden_size"),
    ],
)
def test_a_shape_that_no_file_gives(unplanned, tmp_path, content, said):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    assert said in unplanned(f"model.actor.shape={path}")


def test_a_shape_that_no_list_has(unplanned):
    assert "Did you mean 'llama-7b'?" in unplanned("model.actor.shape=llama-7")


def test_a_page_that_cannot_be_begun(unplanned, tmp_path):
    assert "there is no folder" in unplanned(options=("--html", str(tmp_path / "no" / "x.html")))
    assert "this is a folder" in unplanned(options=("--html", str(tmp_path)))
    page = tmp_path / "x.html"
    assert "nothing to show" in unplanned("cluster=auto", options=("--html", str(page)))
    assert not page.exists()


def test_a_page_that_the_disk_does_not_take(failed, request_file, tmp_path, monkeypatch):
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flexrlhf.report.plan_page.write_atomically", full)
    err = failed("plan", request_file, "--html", tmp_path / "x.html")
    assert "cannot be written: No space left on device" in err
