from __future__ import annotations

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.report.run_folder import read_run, setting


def test_a_whole_run_is_read_without_notes(runs):
    record = read_run(runs.write_whole())
    assert record.name == "whole"
    assert record.algorithm == "ppo"
    assert [line["reward/mean"] for line in record.metrics] == [0.5, 1.0, 1.5]
    assert record.timelines["measured"].iterations == (1, 2)
    assert [answer.response[:2] for answer in record.answers] == ["no", "he"]
    assert record.log_tail == "first\nlast"
    assert record.progress == "3"
    assert record.notes == ()


def test_only_metrics_are_needed(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "kl/mean": 0.5}\n')
    record = read_run(tmp_path)
    assert record.config == {}
    assert record.answers == ()
    assert record.timelines == {}
    assert record.algorithm == ""
    assert record.planned_iterations is None
    assert record.notes == ()


def test_a_torn_last_line_is_left_out_and_said(runs):
    folder = runs.write("torn")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 4, "rew')
    record = read_run(folder)
    assert record.finished_iterations == 3
    assert record.notes == ("metrics.jsonl: the last line is cut off and was left out.",)


def test_a_last_line_torn_inside_a_character_is_left_out(runs):
    folder = runs.write("torn", samples=[runs.sample(1, "p", "r")])
    with (folder / "samples.jsonl").open("ab") as file:
        file.write('{"iteration": 2, "prompt": "é'.encode()[:-1])
    assert len(read_run(folder).answers) == 1


def test_a_broken_line_in_the_middle_is_named_by_its_number(runs):
    folder = runs.write("broken")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([lines[0], "[1]", *lines[1:]]) + "\n")
    record = read_run(folder)
    assert len(record.metrics) == 3
    assert record.notes == ("metrics.jsonl: line 2 is not a JSON object and was left out.",)


def test_the_later_line_of_an_iteration_counts(runs):
    lines = [runs.line(1), runs.line(2), runs.line(2, **{"kl/mean": 9.0})]
    record = read_run(runs.write("twice", metrics=lines))
    assert [line["kl/mean"] for line in record.metrics] == [0.01, 9.0]


def test_a_loss_that_is_not_finite_is_said(runs):
    lines = [runs.line(1), runs.line(2, **{"loss/policy": float("nan")})]
    (note,) = read_run(runs.write("nan", metrics=lines)).notes
    assert note == "loss/policy is nan at iteration 2: it is not drawn."


def test_numbers_beyond_all_bounds_are_damage(runs):
    folder = runs.write("huge", samples=[runs.sample(1, "p", "r")])
    digits = "9" * 400
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"iteration": {digits}, "kl/mean": 1}}\n')
        file.write(f'{{"iteration": 9, "kl/mean": {digits}, "reward/mean": 1e308}}\n')
    with (folder / "samples.jsonl").open("a") as file:
        file.write(f'{{"iteration": 2, "prompt": "p", "response": "r", "reward": {digits}}}\n')
        file.write('{"iteration": Infinity, "prompt": "p", "response": "r"}\n')
        file.write('{"iteration": 2, "prompt": "p", "response": "r", "reward_parts": [1]}\n')
    record = read_run(folder)
    assert record.metrics[-1] == {"iteration": 9}
    assert len(record.answers) == 1
    assert len(record.notes) == 4


@pytest.mark.parametrize("name", ["plan.json", "environment.json", "timeline.json", "config.yaml"])
@pytest.mark.parametrize(
    "content", ['{"traceEvents": [', "- 1\n- 2\n", "[1, 2]", "[" * 5000, "!!int x", "\x01"]
)
def test_a_damaged_file_becomes_a_note(runs, name, content):
    folder = runs.write_whole()
    (folder / name).write_text(content)
    (note,) = read_run(folder).notes
    assert note.startswith(name)
    assert note.endswith("was left out.")


def test_a_run_that_stopped_early_says_how_far_it_came(runs):
    assert read_run(runs.write("early", metrics=[runs.line(1)])).progress == "1 of 3"


def test_the_evaluation_before_training_is_no_iteration(runs):
    lines = [{"iteration": 0, "eval/reward": 0.1}, runs.line(1)]
    record = read_run(runs.write("evaluated", metrics=lines))
    assert record.finished_iterations == 1
    assert len(record.metrics) == 2


def test_stages_stand_in_the_order_of_the_config(runs):
    record = read_run(runs.write_staged())
    assert [stage.name for stage in record.stages] == ["sft", "rm", "ppo"]


def test_a_stage_takes_plan_and_environment_from_its_run(runs):
    stages = read_run(runs.write_staged()).stages
    assert [s.plan["plans"][0]["strategy"] for s in stages] == ["of sft", "of rm", "of ppo"]
    assert stages[1].environment == {"threads": 2}


def test_a_stage_without_metrics_is_left_out(runs):
    folder = runs.write_staged()
    (folder / "stages/ppo/metrics.jsonl").write_text("")
    assert [stage.name for stage in read_run(folder).stages] == ["sft", "rm"]


def test_a_missing_folder_is_the_users_mistake(tmp_path):
    with pytest.raises(ConfigError, match="nowhere' does not exist"):
        read_run(tmp_path / "nowhere")


def test_a_folder_without_metrics_is_the_users_mistake(tmp_path):
    (tmp_path / "config.yaml").write_text("algorithm: {name: ppo}")
    with pytest.raises(ConfigError, match="has no metrics"):
        read_run(tmp_path)


def test_a_setting_is_found_by_its_dotted_key():
    config = {"rollout": {"engine": "native"}, "cluster": "auto"}
    assert setting(config, "rollout.engine") == "native"
    assert setting(config, "rollout.seed", 3) == 3
    assert setting(config, "cluster.ray", "none") == "none"


def test_a_file_in_place_of_a_run_folder_is_called_one(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        read_run(tmp_path / "run")
