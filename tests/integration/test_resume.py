"""An interrupted run goes on as if nothing had happened, and only as the run that it was."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest
import yaml

import flexrlhf
from flexrlhf.core.errors import CheckpointError, ConfigError


class StopAfter:
    """A listener that interrupts a run as a user does, when an iteration is finished."""

    def __init__(self, iteration: int, *, stage: str | None = None) -> None:
        self._iteration = iteration
        self._stage = stage
        self._running = ""

    def start_stage(self, name, iterations, finished):
        self._running = name

    def finish_iteration(self, iteration, metrics):
        if iteration == self._iteration and self._stage in (None, self._running):
            raise KeyboardInterrupt


@pytest.fixture
def interrupt(train):
    """Trains a config until an iteration is finished, and stops there."""

    def run(content, iteration, *, stage=None, **keys) -> None:
        with pytest.raises(KeyboardInterrupt):
            train(content, listener=StopAfter(iteration, stage=stage), **keys)

    return run


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file of a run folder but those that say how it was started."""
    files = (path for path in folder.rglob("*") if path.is_file())
    told = ("log.txt", "report.html", "environment.json", ".lock")
    return {path: path.read_bytes() for path in files if path.name not in told}


@pytest.mark.parametrize("iteration", [1, 2, 3, 4])
def test_a_run_goes_on_after_any_iteration(
    train, interrupt, document, assert_same_run, world, iteration
):
    """With adaptive KL, random numbers in the reward, and evaluation; checkpoints at 2 and 4."""
    content = document("ppo", kl_target=0.1, kl_horizon=40)
    content["reward"]["functions"][0]["path"] = f"{world / 'rewards.py'}:noisy"
    content["data"]["evaluation"] = {"path": str(world / "held-out.jsonl"), "every": 3}
    content["training"] |= {"iterations": 5, "schedule": "cosine", "warmup_steps": 2}
    expected = train(content, "expected").run_dir
    interrupt(content, iteration)
    resumed = train(content, resume=True)
    assert_same_run(resumed.run_dir, expected)
    coefficients = {row["kl/coefficient"] for row in resumed.metrics if row["iteration"] > 0}
    assert len(coefficients) > 3  # the controller moves
    kept = sorted(path.name for path in (resumed.run_dir / "checkpoints").iterdir())
    assert kept == ["iteration-4", "iteration-5"]


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("sft", {}),
        ("reward_model", {}),
        ("dpo", {"epochs": 2}),
        ("ppo", {"share_actor_critic": True, "epochs": 2}),
        ("grpo", {"kl_placement": "reward", "kl_target": 0.1, "kl_horizon": 40}),
    ],
    ids=["sft", "reward_model", "dpo", "ppo-shared", "grpo"],
)
def test_a_run_may_be_interrupted_twice(
    train, interrupt, document, assert_same_run, algorithm, keys
):
    content = document(algorithm, **keys)
    content["training"] |= {"iterations": 6}
    expected = train(content, "expected").run_dir
    interrupt(content, 3)
    interrupt(content, 5, resume=True)
    assert_same_run(train(content, resume=True).run_dir, expected)


def test_the_timeline_goes_on(train, interrupt, document):
    from flexrlhf.core.timeline import read_trace

    content = document("grpo")
    interrupt(content, 3)
    timeline = read_trace(train(content, resume=True).run_dir / "timeline.json")["measured"]
    assert timeline.iterations == (1, 2, 3, 4)
    ends = [timeline.window(iteration)[1] for iteration in (1, 2, 3)]
    starts = [timeline.window(iteration)[0] for iteration in (2, 3, 4)]
    assert all(end <= start for end, start in zip(ends, starts, strict=True))


def test_a_finished_run_is_left_as_it_is(train, document):
    content = document("ppo")
    content["training"]["micro_batch_tokens"] = "auto"
    first = train(content)
    before = contents(first.run_dir)
    again = train(content, resume=True)
    assert contents(first.run_dir) == before
    assert again.metrics == first.metrics


def test_more_iterations_go_on_from_the_last(train, document, assert_same_run, world):
    """Iteration 4, which was the last, is evaluated no more: only 0, 3 and 6 are due."""
    content = document("grpo")
    content["data"]["evaluation"] = {"path": str(world / "held-out.jsonl"), "every": 3}
    expected = train(content, "expected", overrides=["training.iterations=6"]).run_dir
    train(content)
    run_dir = train(content, resume=True, overrides=["training.iterations=6"]).run_dir
    assert_same_run(run_dir, expected)
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["training"]["iterations"] == 6


def test_fewer_iterations_than_are_finished_are_refused(train, document):
    run_dir = train(document("grpo")).run_dir
    before = contents(run_dir)
    with pytest.raises(ConfigError, match="iterations of grpo = 3, but 4 are finished"):
        train(document("grpo"), resume=True, overrides=["training.iterations=3"])
    assert contents(run_dir) == before


def test_what_may_change_may_change(train, interrupt, document, assert_same_run):
    content = document("grpo")
    expected = train(content, "expected").run_dir
    interrupt(content, 3)
    changes = ["run.trackers=[tensorboard]", "placement.strategy=colocated", "cluster=auto"]
    run_dir = train(content, resume=True, overrides=changes).run_dir
    assert_same_run(run_dir, expected)
    assert list((run_dir / "tensorboard").iterdir())


@pytest.mark.parametrize(
    "change",
    [
        "run.seed=1",
        "model.actor.architecture.hidden_size=32",
        "algorithm.name=ppo",
        "algorithm.kl_coef=0.2",
        "data.prompts.path=held-out.jsonl",
        "training.learning_rate=0.1",
        "training.micro_batch_tokens=64",
        "rollout.temperature=0.5",
    ],
)
def test_another_run_is_refused(
    interrupt, command, config_file, document, world, tmp_path, monkeypatch, change
):
    monkeypatch.chdir(world)
    content = document("grpo")
    interrupt(content, 3)
    before = contents(tmp_path / "run")
    arguments = ("train", config_file(content), "--run-dir", tmp_path / "run", "--resume")
    status, out, err = command(*arguments, "--set", change)
    assert (status, out) == (2, "")
    key = change.partition("=")[0]
    assert f"{key} was " in err
    assert "training.iterations" in err  # what may change is said
    assert contents(tmp_path / "run") == before


def test_measured_values_are_kept(train, interrupt, document, tmp_path):
    content = document("grpo")
    content["training"]["micro_batch_tokens"] = "auto"
    interrupt(content, 3)
    config = tmp_path / "run" / "config.yaml"
    measured = yaml.safe_load(config.read_text())["training"]["micro_batch_tokens"]
    assert isinstance(measured, int)
    written = f"micro_batch_tokens: {measured}"
    config.write_text(config.read_text().replace(written, "micro_batch_tokens: 31"))
    train(content, resume=True)
    assert yaml.safe_load(config.read_text())["training"]["micro_batch_tokens"] == 31


def test_an_interrupted_stage_goes_on(train, interrupt, staged, assert_same_run):
    expected = train(staged(), "expected").run_dir
    interrupt(staged(), 3, stage="rm")
    interrupt(staged(), 3, stage="ppo", resume=True)
    run_dir = train(staged(), resume=True).run_dir
    whole = json.loads((run_dir / "plan.json").read_text())["plans"]
    for name, plan in zip(("sft", "rm", "ppo"), whole, strict=True):
        assert_same_run(run_dir / "stages" / name, expected / "stages" / name)
        own = json.loads((run_dir / "stages" / name / "plan.json").read_text())["plans"]
        assert own == [plan], "the run's plan keeps what each stage was expected to take"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("stages.sft.training.iterations=9", "of sft = 9, but rm has begun from iteration 4."),
        ("stages.ppo.training.learning_rate=0.1", "stages.ppo.training.learning_rate was 0.01"),
        ("run.seed=1", "stages.ppo.run.seed was 0, now 1"),
    ],
)
def test_stages_that_would_no_longer_fit_are_refused(train, interrupt, staged, change, said):
    interrupt(staged(), 2, stage="rm")
    with pytest.raises(ConfigError) as refused:
        train(staged(), resume=True, overrides=[change])
    assert said in str(refused.value)


def test_iterations_of_stages_to_come_may_change(train, interrupt, staged):
    interrupt(staged(), 2, stage="rm")
    changes = ["stages.rm.training.iterations=5", "stages.ppo.training.iterations=2"]
    result = train(staged(), resume=True, overrides=changes)
    assert len(result.metrics) == 2
    assert (result.run_dir / "stages/rm/checkpoints/iteration-5").is_dir()


def test_a_later_stage_that_cannot_begin_leaves_what_earlier_ones_trained(
    command, config_file, staged, tmp_path
):
    content = staged()
    other = content["stages"][0]["model"]["actor"]
    architecture = other["architecture"] | {"max_position_embeddings": 4}
    content["stages"][2]["model"]["critic"] = other | {"architecture": architecture}
    status, _, err = command("train", config_file(content), "--run-dir", tmp_path / "run")
    assert status == 1
    assert "Stage ppo: Sequences may have" in err
    assert "Traceback" not in err
    assert (tmp_path / "run/stages/sft/model/actor").is_dir()
    assert (tmp_path / "run/stages/rm/model/reward").is_dir()
    assert (tmp_path / "run/report.html").is_file()


def test_only_a_run_can_be_resumed(train, document, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    for name in ("missing", "empty", "other"):
        with pytest.raises(ConfigError, match="holds no run"):
            train(document("sft"), name, resume=True)
    assert not (tmp_path / "missing").exists()
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_a_run_that_was_killed_before_it_began_can_be_resumed(train, document, tmp_path):
    (tmp_path / "run").mkdir()
    for name in (".lock", "log.txt", ".config.yaml.partial"):
        (tmp_path / "run" / name).touch()
    assert len(train(document("sft"), resume=True).metrics) == 4
    assert not (tmp_path / "run" / ".config.yaml.partial").exists()


def test_a_run_folder_in_use_is_refused(train, document, tmp_path):
    run_dir = train(document("sft")).run_dir
    with (run_dir / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="in use by another process"):
            train(document("sft"), resume=True)
    with pytest.raises(ConfigError, match="not empty"):
        train(document("sft"))
    assert (run_dir / "model").is_dir()


@pytest.mark.parametrize("file", ["run.json", "actor/weights.safetensors", "random.safetensors"])
def test_a_damaged_checkpoint_is_named_and_can_be_left_out(
    train, interrupt, document, tmp_path, assert_same_run, file
):
    content = document("sft")
    content["training"] |= {"iterations": 6}
    expected = train(content, "expected").run_dir
    interrupt(content, 5)
    newest = tmp_path / "run" / "checkpoints" / "iteration-4"
    damaged = newest / file
    damaged.write_bytes(damaged.read_bytes()[:20])
    with pytest.raises(CheckpointError, match="iteration-4"):
        train(content, resume=True)
    shutil.rmtree(newest)
    assert_same_run(train(content, resume=True).run_dir, expected)
    assert flexrlhf.report(tmp_path / "run").is_file()
