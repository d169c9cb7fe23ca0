"""Stages: prepared before any starts, run in order, each from what the earlier ones trained."""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve, spec_of, with_threads
from flexrlhf.core.errors import ConfigError, DataError, RunFailed
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.runtime import stages
from flexrlhf.runtime.run_folder import resumed_config
from flexrlhf.runtime.stages import PreparedRun


class Listener:
    """Notes what it hears."""

    def __init__(self):
        self.heard = []

    def start_stage(self, name, iterations, finished):
        self.heard.append((name, iterations, finished))

    def finish_iteration(self, iteration, metrics):
        self.heard.append(iteration)


@pytest.fixture
def staged(make_document):
    """Three stages: sft, then a reward model and grpo that begin from it."""

    def make(**changes):
        sft = {"name": "sft", **make_document("sft", training={"iterations": 2})}
        rm = {"name": "rm", **make_document("reward_model", training={"iterations": 1})}
        rl = {"name": "rl", **make_document("grpo", training={"iterations": 1})}
        from_sft = {"path": "stage:sft/actor", "dtype": "float64"}
        rm["model"] = {"reward": from_sft}
        rl["model"] = {
            "actor": from_sft,
            "reward": {"path": "stage:rm/reward", "dtype": "float64"},
        }
        for stage in (sft, rm, rl):
            for section, values in changes.get(stage["name"], {}).items():
                stage[section] = {**stage[section], **values}
        config = resolve(build_config({"stages": [sft, rm, rl]}))
        return with_threads(config, torch.get_num_threads())

    return make


def prepare(config, folder: Path) -> PreparedRun:
    plans = [one_device_plan(spec_of(stage)) for _, stage in config.stage_configs()]
    return stages.prepare(config, plans, folder)


def run(config, folder: Path) -> Listener:
    listener = Listener()
    folder.mkdir(exist_ok=True)
    stages.run(prepare(config, folder), {"python": "3"}, listener)
    return listener


def test_every_stage_is_prepared_with_its_own_folder_and_data(staged, tmp_path):
    prepared = prepare(staged(), tmp_path)
    assert [stage.name for stage in prepared.stages] == ["sft", "rm", "rl"]
    assert [stage.folder for stage in prepared.stages] == [
        tmp_path / "stages" / name for name in ("sft", "rm", "rl")
    ]
    assert [len(stage.data.training) for stage in prepared.stages] == [6, 6, 6]
    assert list(tmp_path.iterdir()) == []


def test_a_plain_run_is_one_stage_in_the_run_folder(make_config, tmp_path):
    (stage,) = prepare(make_config(), tmp_path).stages
    assert (stage.name, stage.folder) == ("grpo", tmp_path)


def test_bad_rows_of_the_last_stage_are_found_before_the_first_starts(staged, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "red"}\n{"prompt": \n')
    config = staged(rl={"data": {"prompts": {"path": str(rows)}}})
    with pytest.raises(DataError, match="line 2"):
        prepare(config, tmp_path / "run")


def test_a_bad_reward_of_the_last_stage_is_found_before_the_first_starts(staged, tmp_path):
    path = tmp_path / "rewards.py"
    path.write_text("import no_such_package")
    config = staged(rl={"reward": {"functions": [{"path": f"{path}:score"}]}})
    with pytest.raises(ConfigError, match="no_such_package"):
        prepare(config, tmp_path / "run")


def test_a_column_that_a_reward_lacks_is_found_before_the_first_stage_starts(staged, tmp_path):
    path = tmp_path / "rewards.py"
    path.write_text("def known(completions, solution):\n    return [0.0 for _ in solution]\n")
    config = staged(rl={"reward": {"functions": [{"path": f"{path}:known"}]}})
    rows = config.stages[2].data.prompts.path
    with pytest.raises(DataError, match="needs column 'solution', which row 0 lacks") as caught:
        prepare(config, tmp_path / "run")
    assert caught.value.wrong.startswith(rows)


def test_the_origin_of_a_role_is_found_through_two_stages(make_document):
    first = {"name": "first", **make_document("sft")}
    second, third = ({"name": name, **make_document("sft")} for name in ("second", "third"))
    second["model"] = {"actor": {"path": "stage:first/actor"}}
    third["model"] = {"actor": {"path": "stage:second/actor"}}
    config = resolve(build_config({"stages": [first, second, third]}))
    configs = dict(config.stage_configs())
    origin = stages._origin("actor", configs["third"], configs)
    assert origin.path is None
    assert origin.tokenizer == first["model"]["actor"]["tokenizer"]
    assert origin == stages._origin("actor", configs["first"], configs)


def test_a_tokenizer_that_a_later_stage_names_is_its_own(staged, tokenizer_folder, tmp_path):
    other = tmp_path / "tokenizer"
    shutil.copytree(tokenizer_folder, other)
    actor = {"path": "stage:sft/actor", "tokenizer": str(other), "dtype": "float64"}
    configs = dict(staged(rl={"model": {"actor": actor}}).stage_configs())
    assert stages._origin("actor", configs["rl"], configs).tokenizer == str(other)


def test_models_of_earlier_stages_are_looked_for_in_their_folders(staged, tmp_path):
    config = dict(staged().stage_configs())["rl"]
    located = stages._located(config, tmp_path)
    assert located.model.actor.path == str(tmp_path / "stages" / "sft" / "model" / "actor")
    assert located.model.reward.path == str(tmp_path / "stages" / "rm" / "model" / "reward")
    assert located.model.actor.dtype == "float64"
    assert (located.model.critic, located.model.reference) == (None, None)
    assert config.model.actor.path == "stage:sft/actor"


def test_paths_that_name_no_stage_stay(make_config, tmp_path):
    config = make_config()
    assert stages._located(config, tmp_path) == config


def test_stages_run_one_after_the_other_from_what_was_trained(staged, tmp_path):
    folder = tmp_path / "run"
    config = staged()
    listener = run(config, folder)
    assert listener.heard == [("sft", 2, 0), 1, 2, ("rm", 1, 0), 1, ("rl", 1, 0), 1]
    for name, iterations, role in (("sft", 2, "actor"), ("rm", 1, "reward"), ("rl", 1, "actor")):
        stage = folder / "stages" / name
        names = {path.name for path in stage.iterdir()}
        assert {"config.yaml", "plan.json", "environment.json", "metrics.jsonl"} <= names
        assert {"timeline.json", "log.txt", "checkpoints", "model"} <= names
        assert (stage / "checkpoints" / f"iteration-{iterations}" / "run.json").is_file()
        assert (stage / "model" / role / "config.json").is_file()
    assert {"config.yaml", "plan.json", "environment.json"} <= {p.name for p in folder.iterdir()}
    prepared = prepare(config, folder)
    assert [row["iteration"] for row in stages.metrics(prepared.stages[0])] == [1, 2]


def test_the_models_of_a_stage_are_gone_when_the_next_is_loaded(staged, tmp_path, monkeypatch):
    launch = stages.launch
    models: list[weakref.ref] = []
    alive: list[int] = []

    def watched(config, data):
        alive.append(sum(model() is not None for model in models))
        launched = launch(config, data)
        models.extend(weakref.ref(model) for model in launched.worker.models.values())
        return launched

    monkeypatch.setattr(stages, "launch", watched)
    run(staged(), tmp_path / "run")
    assert alive == [0, 0, 0]
    assert len(models) == 1 + 1 + 3


def test_a_finished_run_is_not_run_again(staged, tmp_path):
    folder = tmp_path / "run"
    config = staged()
    run(config, folder)
    weights = folder / "stages" / "rl" / "model" / "actor" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert run(resumed_config(config, folder), folder).heard == []
    assert weights.stat().st_mtime_ns == before


def test_a_stage_whose_models_are_missing_is_not_finished(staged, tmp_path):
    folder = tmp_path / "run"
    config = staged()
    run(config, folder)
    weights = folder / "stages" / "rl" / "model" / "actor" / "model.safetensors"
    before = load_file(weights)
    shutil.rmtree(folder / "stages" / "rl" / "model")
    assert run(resumed_config(config, folder), folder).heard == [("rl", 1, 1)]
    after = load_file(weights)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_later_stage_that_cannot_begin_is_a_failed_run(staged, tmp_path):
    """ConfigError would say that nothing was started, and the folder would be removed."""
    folder = tmp_path / "run"
    config = staged(rl={"rollout": {"max_new_tokens": 40}, "training": {"micro_batch_tokens": 99}})
    with pytest.raises(RunFailed, match=r"Stage rl: Sequences may have 42 tokens"):
        run(config, folder)
    assert (folder / "stages" / "rm" / "model" / "reward" / "config.json").is_file()


def test_a_first_stage_that_cannot_begin_is_wrong_input(make_config, tmp_path):
    config = make_config(
        rollout={"max_new_tokens": 40}, training={"micro_batch_tokens": 99, "threads": 1}
    )
    with pytest.raises(ConfigError, match="Sequences may have 42 tokens"):
        run(config, tmp_path / "run")


def test_a_stage_cannot_go_on_when_a_later_one_has_begun(staged, tmp_path):
    folder = tmp_path / "run"
    run(staged(), folder)
    asked = staged(sft={"training": {"iterations": 5}})
    with pytest.raises(ConfigError, match="iterations of sft = 5, but rl has begun"):
        run(resumed_config(asked, folder), folder)


def test_the_last_stage_can_be_trained_further(staged, tmp_path):
    folder = tmp_path / "run"
    run(staged(), folder)
    asked = staged(rl={"training": {"iterations": 3}})
    assert run(resumed_config(asked, folder), folder).heard == [("rl", 3, 1), 2, 3]


def test_a_failure_is_in_the_log_and_what_was_measured_stays(make_config, tmp_path):
    path = tmp_path / "rewards.py"
    path.write_text(
        "calls = []\n"
        "def score(prompts, completions, **columns):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 2:\n"
        "        raise OSError('the reward server is gone')\n"
        "    return [0.1 * len(text) for text in completions]\n"
    )
    config = make_config(reward={"functions": [{"path": f"{path}:score"}]}, training={"threads": 1})
    folder = tmp_path / "run"
    with pytest.raises(RunFailed, match="the reward server is gone"):
        run(config, folder)
    (stage,) = prepare(config, folder).stages
    assert [row["iteration"] for row in stages.metrics(stage)] == [1, 2]
    assert (folder / "timeline.json").is_file()
