"""A finished run leaves what it promises: every file, every metric that applies, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import flexrlhf

CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sft": ("sft", {}),
    "reward_model": ("reward_model", {}),
    "dpo": ("dpo", {"epochs": 2}),
    "ppo": ("ppo", {}),
    "ppo-no-kl": ("ppo", {"kl_coef": 0.0}),
    "ppo-shared": ("ppo", {"share_actor_critic": True}),
    "grpo-kl-in-loss": ("grpo", {}),
    "grpo-kl-in-reward": ("grpo", {"kl_placement": "reward"}),
    "grpo-no-kl": ("grpo", {"kl_coef": 0.0}),
}
FILES = {
    *("config.yaml", "plan.json", "metrics.jsonl", "timeline.json", "report.html", "checkpoints"),
    *("model", "samples.jsonl", "environment.json", "log.txt"),
}
ALWAYS = {
    *("iteration", "samples", "tokens", "grad_norm", "learning_rate"),
    *("time/train_s", "time/iteration_s", "time/driver_s"),
    *("throughput/samples_per_s", "throughput/tokens_per_s"),
    *("memory/peak_bytes", "memory/efficiency", "utilization/mean", "share/train", "share/bubble"),
}
GENERATES = {
    *("reward/mean", "reward/std", "reward/good", "entropy/mean", "loss/policy"),
    *("ratio/clip_fraction", "staleness/mean", "staleness/max", "response_tokens/mean"),
    *("logprob_gap/max", "weights/version", "time/generate_s", "time/score_s", "time/sync_s"),
    *("share/generate", "share/score", "share/sync"),
}
APPLIES = {
    "sft": {*ALWAYS, "loss/supervised"},
    "reward_model": {*ALWAYS, "loss/preference", "accuracy/preference"},
    "dpo": {
        *(*ALWAYS, "loss/preference", "accuracy/preference", "time/score_s", "share/score"),
        *("implicit_reward/chosen", "implicit_reward/rejected", "implicit_reward/margin"),
        *("logprobs/chosen", "logprobs/rejected"),
    },
    "ppo": {*ALWAYS, *GENERATES, "loss/value", "kl/mean"},
    "ppo-no-kl": {*ALWAYS, *GENERATES, "loss/value"},
    "ppo-shared": {*ALWAYS, *GENERATES, "loss/value", "kl/mean"},
    "grpo-kl-in-loss": {*ALWAYS, *GENERATES, "kl/mean"},
    "grpo-kl-in-reward": {*ALWAYS, *GENERATES, "kl/mean"},
    "grpo-no-kl": {*ALWAYS, *GENERATES},
}
"""What each case records of the names that users rely on."""
RELIED_ON = {*set().union(*APPLIES.values()), "share/communication", "cost/per_1k_samples"}
"""A run may record others besides."""


@pytest.fixture(scope="module", params=CASES)
def finished(request, document, tmp_path_factory) -> tuple[str, flexrlhf.RunResult]:
    """A case and its run of four iterations."""
    algorithm, keys = CASES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    path = folder / "run.yaml"
    path.write_text(json.dumps(document(algorithm, **keys)))
    return request.param, flexrlhf.train(flexrlhf.load_config(path), run_dir=folder / "run")


def test_run_folder(finished: tuple[str, flexrlhf.RunResult]):
    case, result = finished
    folder = result.run_dir
    assert {path.name for path in folder.iterdir()} == {*FILES, ".lock"}
    check_description(folder)
    check_models(folder, case)
    check_timeline(folder, case)
    if case not in ("sft", "reward_model", "dpo"):
        check_samples(folder)


def test_metrics(finished: tuple[str, flexrlhf.RunResult]):
    case, result = finished
    rows = [
        json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().split("\n")[:-1]
    ]
    assert rows == list(result.metrics)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row.keys() & RELIED_ON == APPLIES[case]
        shares = [value for key, value in row.items() if key.startswith("share/")]
        assert sum(shares) == pytest.approx(1, abs=0.01)
        assert all(share >= 0 for share in shares)
        assert 0 < row["utilization/mean"] <= 1
        assert 0 < row["memory/efficiency"] <= 1
        assert row["throughput/samples_per_s"] * row["time/iteration_s"] == pytest.approx(
            row["samples"]
        )
    if "weights/version" in APPLIES[case]:
        assert [row["weights/version"] for row in rows] == [1, 2, 3, 4]
        assert all(row["samples"] == 16 and row["staleness/max"] == 0 for row in rows)
        assert all(row["logprob_gap/max"] < 1e-5 for row in rows)


def check_description(folder: Path) -> None:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["training"]["micro_batch_tokens"] == 128
    assert "auto" not in _leaves({**config, "placement": None, "cluster": None, "data": None})
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["request"]["algorithm"]["name"] == config["algorithm"]["name"]
    (entry,) = plan["plans"]
    assert (entry["rank"], entry["strategy"], entry["feasible"]) == (1, "colocated", True)
    environment = json.loads((folder / "environment.json").read_text())
    assert torch.__version__.split("+")[0] == environment["packages"]["torch"].split("+")[0]
    assert environment["threads"]["torch"] == 1
    assert environment["command"]
    assert "begins" in (folder / "log.txt").read_text()
    page = (folder / "report.html").read_text()
    assert "<script src=" not in page
    assert "<link" not in page


def _leaves(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(_leaves, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(_leaves, value)) if value else set()
    return {str(value)}


def check_models(folder: Path, case: str) -> None:
    """The final models are what the last checkpoint holds, and plain transformers reads them."""
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )

    roles = {
        "reward_model": {"reward"},
        "ppo": {"actor", "critic"},
        "ppo-no-kl": {"actor", "critic"},
    }
    trained = roles.get(case, {"actor"})
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {
        "iteration-2",
        "iteration-4",
    }
    assert {path.name for path in (folder / "model").iterdir()} == trained
    for role in trained:
        is_policy = role == "actor"
        kind = AutoModelForCausalLM if is_policy else AutoModelForSequenceClassification
        model, report = kind.from_pretrained(folder / "model" / role, output_loading_info=True)
        assert not any(report.values()), report
        assert model.config.num_labels == 1 or is_policy
        tokenizer = AutoTokenizer.from_pretrained(folder / "model" / role)
        output = model(**tokenizer("say the tea", return_tensors="pt", return_token_type_ids=False))
        assert output.logits.isfinite().all()
        saved = load_file(folder / "checkpoints" / "iteration-4" / role / "weights.safetensors")
        held = {name.removeprefix("trunk."): tensor for name, tensor in saved.items()}
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, held[name]), name


def check_timeline(folder: Path, case: str) -> None:
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == (["measured"] if torch.cuda.is_available() else ["measured", "predicted"])
    predicted = {e["name"] for e in events if e["ph"] == "X" and e["pid"] == 2}
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert not predicted or predicted == {span["name"] for span in spans}
    assert {span["args"]["iteration"] for span in spans} == {1, 2, 3, 4}
    stages = {span["cat"] for span in spans}
    everything = {"generate", "score", "advantage", "train", "sync"}
    given = {"sft": {"train"}, "reward_model": {"train"}, "dpo": {"score", "train"}}
    assert stages == given.get(case, everything)
    assert all(span["dur"] >= 0 for span in spans)


def check_samples(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4
    for row in rows:
        assert row["prompt"].startswith("say")
        assert row["reward"] == pytest.approx(
            row["response"].split().count("good") / max(1, len(row["response"].split()))
        )
        assert row["reward_parts"] == {"good": row["reward"]}


def test_a_run_of_stages_has_a_run_folder_per_stage(train, staged: Callable[[], dict[str, Any]]):
    result = train(staged())
    folder = result.run_dir
    everywhere = {"config.yaml", "plan.json", "environment.json", "log.txt", "report.html"}
    assert {path.name for path in folder.iterdir()} == {*everywhere, "stages", ".lock"}
    plans = json.loads((folder / "plan.json").read_text())["plans"]
    assert [set(plan["placement"]) for plan in plans] == [
        {"actor"},
        {"reward"},
        {"actor", "critic", "reference", "reward"},
    ]
    for name, roles in (("sft", {"actor"}), ("rm", {"reward"}), ("ppo", {"actor", "critic"})):
        stage = folder / "stages" / name
        assert {path.name for path in stage.iterdir()} == FILES
        assert {path.name for path in (stage / "model").iterdir()} == roles
        assert f"{name} begins" in (stage / "log.txt").read_text()
        assert len(json.loads((stage / "plan.json").read_text())["plans"]) == 1
        check_description(stage)
    rows = result.metrics
    assert len(rows) == 4
    assert all("reward/model" in row and "kl/mean" in row for row in rows)


def test_later_stages_begin_with_what_earlier_ones_trained(train, staged, weights):
    """With a learning rate near zero a stage's result is what it began with."""
    document = staged()
    for stage in document["stages"][1:]:
        stage["training"] |= {"learning_rate": 1e-30, "critic_learning_rate": 1e-30}
    stages = train(document).run_dir / "stages"
    tuned = weights(stages / "sft")
    scorer = weights(stages / "rm")
    final = weights(stages / "ppo")
    for name, tensor in tuned.items():
        assert torch.equal(final[name], tensor), name
        in_scorer = name.replace("actor", "reward")
        if "lm_head" not in name:
            assert torch.equal(scorer[in_scorer], tensor), name
    for name, tensor in scorer.items():
        assert torch.equal(final[name.replace("reward", "critic")], tensor), name
