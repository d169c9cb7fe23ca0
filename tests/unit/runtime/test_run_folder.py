"""A run folder: begun once, held by one process, resumed only as the run that it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexrlhf.config.loading import build_config, load_saved_config
from flexrlhf.config.resolution import resolve
from flexrlhf.core.errors import ConfigError, DataError, EngineMissing, PlanError, RunFailed
from flexrlhf.runtime.run_folder import (
    MAY_CHANGE,
    default_folder,
    opened,
    remove_leftovers,
    resumed_config,
    write_config,
    write_json,
    write_text,
)

HOLD = """
import sys
from pathlib import Path
from flexrlhf.runtime.run_folder import opened
with opened(Path(sys.argv[1]), resume=False):
    print("held", flush=True)
    sys.stdin.read()
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_default_folder_is_named_by_algorithm_and_time():
    folder = default_folder("ppo")
    assert folder.parent == Path("runs")
    assert folder.name.startswith("ppo-20")


def test_a_new_folder_is_made_with_its_parents(tmp_path):
    with opened(tmp_path / "a" / "b", resume=False) as folder:
        assert names(folder) == [".lock"]
    assert folder.is_dir()


def test_an_empty_folder_can_be_used(tmp_path):
    with opened(tmp_path, resume=False):
        pass
    with opened(tmp_path, resume=False):  # the lock alone is no content
        pass


def test_a_folder_with_contents_is_not_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with (
        pytest.raises(ConfigError, match="exists and is not empty") as caught,
        opened(tmp_path, resume=False),
    ):
        pytest.fail("must not be opened")
    assert "--resume" in caught.value.do
    assert names(tmp_path) == ["notes.txt"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="is a file"), opened(tmp_path / "run", resume=False):
        pytest.fail("must not be opened")


@pytest.mark.parametrize("path", ["/proc/run", "x" * 300])
def test_a_place_where_no_folder_can_be_made(path):
    with (
        pytest.raises(ConfigError, match="cannot be written"),
        opened(Path(path), resume=False),
    ):
        pytest.fail("must not be opened")


def test_two_processes_do_not_share_a_folder(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(ConfigError, match="in use by another process"),
            opened(folder, resume=False),
        ):
            pytest.fail("must not be opened")
        assert names(folder) == [".lock"]
        holder.stdin.close()
        holder.wait(20)
    with opened(folder, resume=False):
        pass


def test_a_killed_process_holds_nothing(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
    with opened(tmp_path, resume=False):
        pass


def begin_and_fail(folder: Path, error: Exception, *, resume: bool = False) -> None:
    with opened(folder, resume=resume):
        (folder / "log.txt").write_text("begun")
        (folder / "checkpoints").mkdir()
        raise error


@pytest.mark.parametrize("kind", [ConfigError, DataError, PlanError, EngineMissing])
def test_what_is_found_before_the_start_leaves_nothing_behind(tmp_path, kind):
    with pytest.raises(kind, match="wrong"):
        begin_and_fail(tmp_path / "runs" / "first" / "run", kind("wrong"))
    assert names(tmp_path) == []


def test_wrong_input_leaves_a_folder_that_was_there_as_it_was(tmp_path):
    """It may be a mounted volume, which cannot be removed, or have permissions of its own."""
    with pytest.raises(ConfigError, match="wrong"):
        begin_and_fail(tmp_path, ConfigError("wrong"))
    assert names(tmp_path) == []


def test_a_failed_run_leaves_what_it_finished(tmp_path):
    with pytest.raises(RunFailed):
        begin_and_fail(tmp_path / "run", RunFailed("nan"))
    assert names(tmp_path / "run") == [".lock", "checkpoints", "log.txt"]


def test_wrong_input_of_a_resumed_run_removes_nothing(tmp_path):
    (tmp_path / "config.yaml").write_text("saved")
    with pytest.raises(ConfigError, match="wrong"):
        begin_and_fail(tmp_path, ConfigError("wrong"), resume=True)
    assert "config.yaml" in names(tmp_path)
    assert "checkpoints" in names(tmp_path)


@pytest.mark.parametrize("contents", [[], ["notes.txt"], [".lock", "notes.txt"]])
def test_resuming_what_is_no_run(tmp_path, contents):
    for name in contents:
        (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match="holds no run"), opened(tmp_path, resume=True):
        pytest.fail("must not be opened")
    assert names(tmp_path) == contents


def test_resuming_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"), opened(tmp_path / "run", resume=True):
        pytest.fail("must not be opened")
    assert names(tmp_path) == []


def test_resuming_a_run_that_was_killed_before_it_wrote_its_config(tmp_path, make_config):
    for name in (".lock", "log.txt", ".config.yaml.partial"):
        (tmp_path / name).write_text("")
    config = make_config()
    with opened(tmp_path, resume=True):
        assert resumed_config(config, tmp_path) == config


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    torn = tmp_path / "checkpoints" / ".iteration-5-xy" / "new"
    torn.mkdir(parents=True)
    (torn / "weights").write_text("w")
    (tmp_path / "checkpoints" / "iteration-4").mkdir()
    (tmp_path / ".model-ab").mkdir()
    for name in (".lock", ".config.yaml.partial", "log.txt"):
        (tmp_path / name).write_text("")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".lock", "checkpoints", "log.txt"]
    assert names(tmp_path / "checkpoints") == ["iteration-4"]


def test_removing_leftovers_of_a_stage_that_has_not_begun(tmp_path):
    remove_leftovers(tmp_path / "stages" / "sft")


def test_a_text_appears_whole(tmp_path):
    write_text(tmp_path / "a.txt", "one")
    write_text(tmp_path / "a.txt", "two")
    write_json(tmp_path / "b.json", {"x": [1, 2]})
    assert names(tmp_path) == ["a.txt", "b.json"]
    assert (tmp_path / "a.txt").read_text() == "two"
    assert json.loads((tmp_path / "b.json").read_text()) == {"x": [1, 2]}


def test_a_text_on_a_full_disk_keeps_the_old_one(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    (tmp_path / f".a.txt.{os.getpid()}.partial").symlink_to("/dev/full")
    with pytest.raises(RunFailed, match=r"a\.txt failed: No space left"):
        write_text(tmp_path / "a.txt", "new" * 10_000)
    assert (tmp_path / "a.txt").read_text() == "old"


@pytest.fixture
def saved(tmp_path, make_document):
    """Saves the config of a run; returns a maker of what is asked for on resume."""
    write_config(resolve(build_config(make_document())), tmp_path)

    def asked(**sections):
        config = resolve(build_config(make_document(**sections)))
        return resumed_config(config, tmp_path)

    return asked


def test_the_same_config_resumes_as_it_was_saved(saved, tmp_path):
    assert saved() == load_saved_config(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("training", {"iterations": 9}),
        ("run", {"trackers": ["tensorboard"]}),
        ("placement", {"strategy": "colocated"}),
        ("rollout", {"speculation": "prompt_lookup", "speculative_tokens": 2}),
    ],
)
def test_what_may_change(saved, section, values):
    config = saved(**{section: values})
    for key, value in values.items():
        found = getattr(getattr(config, section), key)
        assert (list(found) if isinstance(found, tuple) else found) == value
    assert section in {key.split(".")[0] for key in MAY_CHANGE}


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("run", {"seed": 6}),
        ("run", {"checkpoint_every": 3}),
        ("training", {"learning_rate": 0.01}),
        ("training", {"micro_batch_tokens": 80}),
        ("training", {"prompts_per_iteration": 2}),
        ("algorithm", {"kl_coef": 0.5}),
        ("rollout", {"max_new_tokens": 4}),
        ("reward", {"model_weight": 2.0}),
    ],
)
def test_what_may_not_change_is_named_with_both_values(saved, section, values):
    ((key, value),) = values.items()
    with pytest.raises(ConfigError) as caught:
        saved(**{section: values})
    assert f"{section}.{key} was " in str(caught.value)
    assert f"now {value!r}" in str(caught.value)
    assert "training.iterations" in caught.value.right


def test_all_differences_are_said_at_once(saved):
    with pytest.raises(ConfigError) as caught:
        saved(run={"seed": 6}, training={"learning_rate": 0.01, "iterations": 5})
    assert "run.seed was 5, now 6" in str(caught.value)
    assert "training.learning_rate was 0.05, now 0.01" in str(caught.value)
    assert "iterations was" not in str(caught.value)


def test_another_model_or_algorithm_is_refused(saved, tmp_path, make_document, files):
    document = make_document()
    document["model"]["actor"]["architecture"]["hidden_size"] = 16
    with pytest.raises(ConfigError, match=r"model\.actor\.architecture\.hidden_size was 8, now 16"):
        resumed_config(resolve(build_config(document)), tmp_path)
    with pytest.raises(ConfigError, match=r"algorithm\.name was 'grpo', now 'ppo'"):
        resumed_config(resolve(build_config(make_document("ppo"))), tmp_path)


def test_what_the_first_start_measured_is_taken_over(tmp_path, make_config):
    config = make_config()
    auto = {"micro_batch_tokens": "auto", "threads": "auto"}
    measured = config.training.model_copy(update={"micro_batch_tokens": 70, "threads": 3})
    write_config(config.model_copy(update={"training": measured}), tmp_path)
    asked = config.model_copy(update={"training": config.training.model_copy(update=auto)})
    training = resumed_config(asked, tmp_path).training
    assert (training.micro_batch_tokens, training.threads) == (70, 3)


def test_stages_are_compared_by_name(tmp_path, make_document):
    def staged(*names: str, **training: int):
        stages = [{"name": name, **make_document("sft", training=training)} for name in names]
        return resolve(build_config({"stages": stages}))

    write_config(staged("one", "two"), tmp_path)
    longer = resumed_config(staged("one", "two", iterations=8), tmp_path)
    assert [stage.training.iterations for stage in longer.stages] == [8, 8]
    with pytest.raises(ConfigError, match=r"stages\.two\.training\.micro_batch_tokens was 40"):
        resumed_config(staged("one", "two", micro_batch_tokens=50), tmp_path)
    with pytest.raises(ConfigError, match=r"stages were \['one', 'two'\], now \['two'\]"):
        resumed_config(staged("two"), tmp_path)


def test_a_damaged_config_says_so(tmp_path, make_config):
    (tmp_path / "config.yaml").write_text("algorithm: {name: ppo")
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        resumed_config(make_config(), tmp_path)


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_interrupt_leaves_what_has_begun_and_nothing_else(tmp_path, has_begun):
    def begin_and_interrupt() -> None:
        with opened(tmp_path / "run", resume=False):
            (tmp_path / "run" / "log.txt").write_text("begun")
            if has_begun:
                (tmp_path / "run" / "config.yaml").write_text("algorithm: {name: sft}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin_and_interrupt()
    assert names(tmp_path) == (["run"] if has_begun else [])
