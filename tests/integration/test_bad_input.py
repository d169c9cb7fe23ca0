"""Mistakes of a careless or hostile user: what is wrong, what is right, what to do; and no harm.

Exit status 2 before anything starts and nothing left behind, or 1 with what was finished saved.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import flexrlhf

Document = dict[str, Any]
MESSAGE = re.compile(
    r"^\w+(?:Error|Failed|Missing|Lost): \S.*(?:\n.*)*?\n  \S.*\n  \S", re.MULTILINE
)
"""Three parts, each in lines of its own."""


def change(content: Document, assignments: Mapping[str, Any]) -> Document:
    """Sets dotted keys of a config."""
    for key, value in assignments.items():
        holder = content
        *above, last = key.split(".")
        for part in above:
            holder = holder.setdefault(part, {})
        holder[last] = value
    return content


@pytest.fixture
def outcome(command, config_file, tmp_path) -> Callable[..., str]:
    """Trains a config, or the text of one, and returns what the command says on stderr."""

    def run(content: Document | str, status: int, *options: object) -> str:
        path = tmp_path / "run.yaml"
        if isinstance(content, str):
            path.write_text(content)
        else:
            config_file(content)
        found, out, err = command("train", path, "--run-dir", tmp_path / "run", *options)
        assert found == status, err
        assert "Traceback" not in err
        if status:
            assert out == ""
            assert MESSAGE.search(err), err
        if status == 2:
            assert not (tmp_path / "run").exists()
        return err

    return run


# ---------------------------------------------------------------------------------------- configs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("- sft\n- ppo\n", "is not a mapping of sections"),
        ("sft", "is not a mapping of sections"),
        (
            "algorithm: {name: sft}\nalgorithm: {name: ppo}\n",
            "line 2: key 'algorithm' is given twice",
        ),
        ("algorithm: {name: sft", "line 1: not valid YAML"),
        ("algorithm:\n\tname: sft\n", "line 2: not valid YAML"),
        ("algorithm: {name: sft}\n---\nrun: {}\n", "line 2: not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: &a [*a]", "an anchor contains itself"),
        ("a: " + "[" * 5000, "nested too deep"),
        ("null: 1", "None: unknown key"),
        ("algorithms: {name: sft}", "Did you mean 'algorithm'?"),
        ('stages: [{name: "sft\\n", algorithm: {name: sft}}]', "not a lower-case word"),
    ],
)
def test_what_is_no_config_is_said(outcome, text, said):
    assert said in outcome(text, 2)


def test_a_config_that_is_a_folder_or_binary_is_said(command, tmp_path):
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    for path, said in (
        (tmp_path, "Is a directory"),
        (tmp_path / "binary.yaml", "is not UTF-8"),
        (tmp_path / "nowhere.yaml", "does not exist"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        for name in ("train", "plan"):
            status, out, err = command(name, path)
            assert (status, out) == (2, "")
            assert said in err
            assert MESSAGE.search(err), err


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("", "not of the form KEY=VALUE"),
        ("=5", "not of the form KEY=VALUE"),
        ("training.iterations", "not of the form KEY=VALUE"),
        ("training..iterations=5", "not of the form KEY=VALUE"),
        ("training.iterations=[1", "not valid YAML"),
        ("training.iterations=", "null: not accepted here"),
        ("training.iterations=five", "a whole number of at least 1"),
        ("training.iterations.x=1", "which has no keys"),
        ("reward.functions.7.weight=1", "the list has no entry '7'"),
        ("stages.sft.run.seed=1", "not a list of stages"),
        ("run.seed=99999999999", "out of range"),
        ("training.threads=100000", "at most 1024"),
        ("training.learning_rate=.nan", "out of range"),
        ("training.betas=[0.9, 1.0]", "training.betas.1 = 1.0: out of range"),
        ("data.prompts.path=~nobody-of-this-name/x", "Could not determine home directory"),
        (f"data.prompts.path={'x' * 5000}", "File name too long"),
        ("rollout.engine=vlm", "native or transformers"),
        ("run.trackers=[wandb]", "tensorboard"),
    ],
)
def test_wrong_assignments_are_said(outcome, document, assignment, said):
    assert said in outcome(document("ppo"), 2, "--set", assignment)


# ------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (b"", "has no rows"),
        (b" \n\n", "has no rows"),
        (b'{"prompt": "say"}\n{"prompt": \n', "line 2 is broken"),
        (b'{"prompt": "th\xe9"}\n', "line 1 is broken: 'utf-8' codec"),
        (bytes(range(256)), "line 1 is broken"),
        (b'{"prompt": "say \\ud800"}\n', "line 1 is broken: 'utf-8' codec"),
        (b'{"prompt": "say", "n": ' + b"1" * 5000 + b"}\n", "line 1 is broken: Exceeds"),
        (b'{"prompt": ' + b"[" * 100_000 + b"\n", "line 1 is broken: maximum recursion"),
        (b'["say"]\n', "line 1 holds ['say']"),
        (b'{"question": "say"}\n', "no column 'prompt'"),
        (b'{"prompt": 5}\n', "Row 0: column 'prompt' holds '5'"),
        (b'{"prompt": ""}\n', "Row 0: the prompt '' has no tokens"),
        (b'{"prompt": "say"}\n{"prompt": " \\t\\u3000 "}\n', "Row 1: the prompt"),
        (b'{"prompt": "say ' + b"the " * 100_000 + b'"}\n', "Row 0 has 100001 tokens"),
        (b'{"prompt": [{"role": "user", "content": "say"}]}\n', "no chat template"),
        (b'{"prompt": [{"role": "user", "content": null}]}\n', "without role or content"),
    ],
)
@pytest.mark.parametrize("kind", ["prompts", "evaluation"])
def test_wrong_rows_are_named_with_their_file(outcome, document, tmp_path, kind, rows, said):
    (tmp_path / "rows.jsonl").write_bytes(rows)
    err = outcome(change(document("ppo"), {f"data.{kind}": {"path": "rows.jsonl"}}), 2)
    assert str(tmp_path / "rows.jsonl") in err
    assert said in err


def test_odd_rows_are_fine(outcome, document, tmp_path):
    """Another script, emoji, a zero byte, NaN in a column, a byte-order mark, a very long line."""
    rows = [
        {"prompt": "say 😀 чай\u0000"},
        {"prompt": "say\n\n\tthe\u2028tea", "number": float("nan"), "list": [[{}]]},
        {"prompt": "say", "text": "x" * 1_000_000},
        {"prompt": "the " * 1000},
    ]
    lines = "\ufeff" + "\r\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "rows.jsonl").write_text(lines, encoding="utf-8")
    content = change(document("grpo"), {"data.prompts.path": "rows.jsonl", "data.too_long": "drop"})
    assert "1 of 4 rows left out" in outcome(content, 0)
    assert (tmp_path / "run" / "report.html").is_file()


# ---------------------------------------------------------------------------------------- rewards

FAILING = """
count = 0


def score(completions, **columns):
    global count
    count += 1
    if count > 3:
        {failure}
    return [float(len(text)) for text in completions]
"""


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("return [None] * len(completions)", "No reward applies to answer 0"),
        ("return None", "returned a NoneType"),
        ("return ['1.0'] * len(completions)", "returned '1.0'"),
        ("return {'score': 1.0}", "returned a dict"),
        ("return [10**400] * len(completions)", "A reward is a finite number"),
        ("return [1e300] * len(completions)", "is out of range: 1e+300 by score"),
        ("raise SystemExit(0)", "raised SystemExit: 0"),
        ("raise MemoryError", "raised MemoryError"),
        ("return score(completions)", "raised RecursionError"),
    ],
)
def test_a_reward_function_that_breaks_costs_nothing_finished(
    outcome, document, tmp_path, failure, said
):
    (tmp_path / "failing.py").write_text(FAILING.format(failure=failure))
    content = change(document("ppo"), {"reward.functions": [{"path": "failing.py:score"}]})
    assert said in outcome(content, 1)
    assert (tmp_path / "run/metrics.jsonl").read_text().count("\n") == 3
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["iteration-2"]
    assert (tmp_path / "run/report.html").is_file()


@pytest.mark.parametrize(
    ("code", "function", "said"),
    [
        ("import sys\nsys.exit(0)", {}, "SystemExit: 0"),
        ("def score(:", {}, "SyntaxError"),
        ("def scores(completions): return []", {}, "Did you mean 'scores'?"),
        ("score = 5", {}, "has no function 'score'"),
        ("def score(text): return 1", {}, "fit no framework"),
        ("async def score(completions): return []", {}, "is asynchronous"),
        ("def score(completions): return []", {"options": {"scale": 2}}, "no option 'scale'"),
        ("def score(completions): return []", {"weight": float("inf")}, "weight"),
    ],
)
def test_a_reward_function_that_is_none_starts_nothing(
    outcome, document, tmp_path, code, function, said
):
    (tmp_path / "mine.py").write_text(code)
    functions = [{"path": "mine.py:score", **function}]
    assert said in outcome(change(document("ppo"), {"reward.functions": functions}), 2)


def test_a_reward_function_that_waits_is_shown_where_it_waits(outcome, document, tmp_path):
    code = "import time\ndef score(completions):\n    time.sleep(4)\n"
    (tmp_path / "mine.py").write_text(code)
    keys = {"reward.functions": [{"path": "mine.py:score"}], "run.task_deadline_s": 2.0}
    err = outcome(change(document("ppo"), keys), 1)
    assert 'mine.py", line 3, in score\n    time.sleep(4)' in err


# ----------------------------------------------------------------------------------------- models


@pytest.fixture(scope="module")
def policy_folder(document, world, tmp_path_factory) -> Path:
    """A model of the usual architecture with its tokenizer."""
    from flexrlhf.learning.models.loading import load_policy, load_tokenizer
    from flexrlhf.learning.models.saving import save_model
    from flexrlhf.learning.models.source import ModelSource

    folder = tmp_path_factory.mktemp("models") / "policy"
    architecture = document("sft")["model"]["actor"]["architecture"]
    model = load_policy(ModelSource(architecture=architecture))
    save_model(model, load_tokenizer(str(world / "tokenizer")), folder)
    return folder


@pytest.fixture
def copied(policy_folder, tmp_path) -> Path:
    """A copy of the model to be damaged."""
    return Path(shutil.copytree(policy_folder, tmp_path / "model"))


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])


def edit(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


DAMAGES: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "torn weights": (lambda f: cut(f / "model.safetensors", 5000), "do not load"),
    "torn header": (lambda f: cut(f / "model.safetensors", 5), "do not load"),
    "pickle only": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "a pickle can run any code",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer that can be read"),
    "torn tokenizer": (lambda f: cut(f / "tokenizer.json", 500), "no tokenizer that can be read"),
    "odd tokenizer": (
        lambda f: edit(f / "tokenizer.json", model={"type": "WordLevel"}),
        "no tokenizer that can be read",
    ),
    "torn config": (lambda f: cut(f / "config.json", 50), "config.json"),
    "odd config": (lambda f: edit(f / "config.json", hidden_size="wide"), "hidden_size"),
    "no heads": (lambda f: edit(f / "config.json", num_attention_heads=0), "ZeroDivisionError"),
    "no layers": (lambda f: edit(f / "config.json", num_hidden_layers=0), "it has no layers"),
    "other layers": (lambda f: edit(f / "config.json", num_hidden_layers=2), "lacks 9 of"),
    "other width": (lambda f: edit(f / "config.json", hidden_size=32), "do not load"),
    "code": (
        lambda f: edit(f / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.C"}),
        "code inside a folder is never run",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_models_start_nothing(outcome, document, copied, damage):
    damaging, said = DAMAGES[damage]
    damaging(copied)
    content = change(document("ppo"), {"model.actor": {"path": str(copied)}})
    err = outcome(content, 2)
    assert said in err
    assert str(copied) in err or "model of actor" in err


@pytest.mark.parametrize("role", ["actor", "critic", "reference", "reward"])
def test_weights_that_are_no_numbers_start_nothing(outcome, document, copied, role):
    file = copied / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.0.mlp.up_proj.weight"][3, 4] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})
    content = change(document("ppo"), {f"model.{role}": {"path": str(copied)}})
    said = r"model of (\w+) cannot compute: model\.layers\.0\.mlp\.up_proj\.weight holds nan"
    found = re.search(said, outcome(content, 2))
    assert found
    assert found[1] in {role, "critic" if role == "reward" else role}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"num_key_value_heads": 3}, "model of actor does not work"),
        ({"num_hidden_layers": 0}, "it has no layers"),
        ({"rope_theta": -1}, "inv_freq holds nan"),
        ({"hidden_act": "foo"}, "makes no model"),
        ({"hidden_size": 0}, "makes no model"),
        ({"vocab_size": 3}, "has ids up to 19"),
        ({"intermediate_size": 10**12}, "GB of memory"),
        ({"hiden_size": 16}, "Did you mean 'hidden_size'?"),
        ({"model_type": "llamas"}, "Did you mean 'llama'?"),
        ({"max_position_embeddings": 8}, "reads at most 8"),
    ],
)
def test_architectures_that_do_not_work_start_nothing(outcome, document, keys, said):
    content = document("ppo")
    actor = content["model"]["actor"]
    actor["architecture"] = actor["architecture"] | keys
    assert said in outcome(content, 2)


def test_a_reward_model_with_two_labels_is_refused(outcome, document, copied):
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(copied, num_labels=2)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(copied)
    content = change(document("ppo"), {"model.reward": {"path": str(copied)}, "reward": {}})
    assert "classifier with 2 labels" in outcome(content, 2)


@pytest.mark.parametrize("role", ["reward", "reference", "critic"])
def test_another_vocabulary_is_refused_under_the_role_that_has_it(outcome, document, copied, role):
    tokenizer = copied / "tokenizer.json"
    text = tokenizer.read_text()
    tokenizer.write_text(text.replace('"tea": 5', '"soup": 5').replace('"soup": 6', '"tea": 6'))
    err = outcome(change(document("ppo"), {f"model.{role}": {"path": str(copied)}}), 2)
    assert f"actor and {role} have different vocabularies" in err
    assert f"'tea' is 5 in actor and 6 in {role}" in err


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 100])
def test_a_truncated_gguf_file_is_refused(outcome, document, tmp_path, monkeypatch, content):
    monkeypatch.setenv("FLEXRLHF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").write_bytes(content)
    config = change(document("ppo"), {"model.actor": {"path": "model.gguf"}})
    assert "is no whole GGUF file" in outcome(config, 2)
    assert not list((tmp_path / "cache").rglob("*.*"))


# ----------------------------------------------------------------- tokenizers that lack something


@pytest.fixture
def tokenizer_with(world, tmp_path) -> Callable[..., str]:
    """Writes the usual tokenizer with other special tokens, and returns its folder."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    def make(**special: str) -> str:
        folder = tmp_path / f"tokenizer-{len(special)}-{special.get('pad_token', 'none')}"
        backend = Tokenizer.from_file(str(world / "tokenizer" / "tokenizer.json"))
        PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
        return str(folder)

    return make


GPT2 = {
    **{"model_type": "gpt2", "vocab_size": 20, "n_embd": 16, "n_layer": 1, "n_head": 2},
    **{"n_positions": 32},
}


@pytest.mark.parametrize("algorithm", ["sft", "reward_model", "ppo", "grpo"])
def test_the_pad_token_means_nothing(
    outcome, document, tokenizer_with, tmp_path, same_metrics, algorithm
):
    """Absent, as in GPT-2, or equal to the end token: masks come from lengths."""
    role = "reward" if algorithm == "reward_model" else "actor"
    rows = []
    for special in (
        {"eos_token": "<end>", "pad_token": "<pad>"},
        {"eos_token": "<end>", "pad_token": "<end>"},
        {"eos_token": "<end>"},
    ):
        keys = {f"model.{role}.tokenizer": tokenizer_with(**special)}
        keys |= {f"model.{role}.architecture": GPT2, "training.iterations": 2}
        outcome(change(document(algorithm), keys), 0)
        rows.append(same_metrics(tmp_path / "run"))
        shutil.rmtree(tmp_path / "run")
    assert rows[0] == rows[1] == rows[2]


def test_without_an_end_token_answers_have_full_length(
    outcome, document, tokenizer_with, tmp_path, samples
):
    keys = {"model.actor.tokenizer": tokenizer_with(pad_token="<pad>")}
    outcome(change(document("ppo"), keys), 0)
    rows = samples(tmp_path / "run")
    assert {row["response_tokens"] for row in rows} == {6}
    assert not any(row["finished"] for row in rows)


def test_without_an_end_token_there_are_no_answers_to_imitate(outcome, document, tokenizer_with):
    keys = {"model.actor.tokenizer": tokenizer_with(pad_token="<pad>")}
    assert "has no end token" in outcome(change(document("sft"), keys), 2)


# ------------------------------------------------------------------ numbers that are not finite


@pytest.mark.parametrize("algorithm", ["sft", "reward_model", "ppo", "grpo"])
def test_weights_that_the_last_step_ruined_are_not_saved(outcome, document, tmp_path, algorithm):
    keys = {"training.learning_rate": 1e30, "training.iterations": 1}
    assert "The last optimiser step ruined the weights" in outcome(
        change(document(algorithm), keys), 1
    )
    assert not (tmp_path / "run" / "model").exists()
    assert not list((tmp_path / "run" / "checkpoints").glob("iteration-*"))
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("algorithm", ["sft", "reward_model"])
def test_a_held_out_loss_that_is_not_finite_stops_the_run(outcome, document, algorithm):
    content = document(algorithm)
    (source,) = content["data"][{"sft": "supervised"}.get(algorithm, "preferences")].values()
    keys = {"training.learning_rate": 1e30, "training.iterations": 1}
    keys |= {"data.evaluation": {"path": source}}
    assert "on the held-out rows is nan" in outcome(change(content, keys), 1)


# ----------------------------------------------------------------------------------- run folders


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"mount cannot be run: {error}")
    if mounted.returncode:
        pytest.skip(f"this user may mount nothing: {mounted.stderr.strip()}")
    yield folder
    # A resumed optimiser reads its state from the mapped file as long as it lives.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


FILLING = """
import os

count = 0


def score(completions, **columns):
    global count
    count += 1
    if count == 4 and not os.path.exists({marker!r}):
        open({marker!r}, "w").close()
        file = os.open({file!r}, os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(file, b"x" * 512)
        except OSError:
            os.close(file)
    return [float(len(text)) for text in completions]
"""


def test_a_disk_that_fills_up_costs_only_what_was_not_finished(command, document, disk, tmp_path):
    code = FILLING.format(file=str(disk / "others"), marker=str(tmp_path / "filled"))
    (tmp_path / "filling.py").write_text(code)
    keys = {"reward.functions": [{"path": "filling.py:score"}], "training.iterations": 5}
    (tmp_path / "run.yaml").write_text(json.dumps(change(document("ppo"), keys)))
    arguments = ("train", tmp_path / "run.yaml", "--run-dir", disk / "run")
    status, out, err = command(*arguments)
    assert (status, out) == (1, "")
    assert "No space left on device" in err
    assert MESSAGE.search(err), err
    assert [path.name for path in (disk / "run" / "checkpoints").iterdir()] == ["iteration-2"]
    (disk / "others").unlink()
    status, _, err = command(*arguments, "--resume")
    assert "4 iterations" not in err
    assert (disk / "run" / "checkpoints" / "iteration-5").is_dir()
    assert (disk / "run" / "model" / "actor").is_dir()
    # The page alone is larger than the disk; the run itself is finished.
    assert status == 1
    assert "The report of" in err
    assert "flexrlhf report" in err


def test_a_read_only_disk_starts_nothing(command, config_file, document, disk):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for run_dir in (disk, disk / "run"):
        status, out, err = command("train", config_file(document("sft")), "--run-dir", run_dir)
        assert (status, out) == (2, "")
        assert "Read-only file system" in err
        assert MESSAGE.search(err), err


@pytest.mark.parametrize("place", ["run.yaml", "run.yaml/run", "/proc/run", "/dev/null", "x" * 300])
def test_a_place_that_can_be_no_run_folder(command, config_file, document, tmp_path, place):
    status, out, err = command("train", config_file(document("sft")), "--run-dir", tmp_path / place)
    assert (status, out) == (2, "")
    assert MESSAGE.search(err), err
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@pytest.fixture(scope="module")
def finished(document, tmp_path_factory) -> tuple[Path, Path]:
    """A config and the folder of its run of three iterations, with a checkpoint at the second."""
    folder = tmp_path_factory.mktemp("finished")
    content = change(document("grpo"), {"training.iterations": 3})
    (folder / "run.yaml").write_text(json.dumps(content))
    flexrlhf.train(flexrlhf.load_config(folder / "run.yaml"), run_dir=folder / "run")
    return folder / "run.yaml", folder / "run"


@pytest.fixture
def interrupted(finished, tmp_path) -> Path:
    """A copy of the run folder as after an interrupt in the third iteration."""
    folder = Path(shutil.copytree(finished[1], tmp_path / "run"))
    shutil.rmtree(folder / "checkpoints" / "iteration-3")
    shutil.rmtree(folder / "model")
    return folder


@pytest.mark.parametrize("file", ["timeline.json", "metrics.jsonl", "samples.jsonl"])
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe\n5\n{}\n"])
def test_a_damaged_record_stops_no_resumed_run(
    command, finished, interrupted, weights, file, damage
):
    config, expected = finished
    (interrupted / file).write_bytes(damage)
    status, _, err = command("train", config, "--run-dir", interrupted, "--resume")
    assert status == 0
    assert "grpo: 3 iterations, 2 finished" in err
    found = weights(interrupted)
    for name, tensor in weights(expected).items():
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("run.json", b"[]"),
        ("run.json", b'{"format": 1, "iteration": 2, "worker": {"kl": {}}}'),
        ("random.json", b'{"python": 5, "numpy": 6}'),
        ("random.safetensors", b""),
        ("actor/weights.safetensors", b"\x08"),
        ("actor/optimizer.safetensors", b"\x02\0\0\0\0\0\0\0{}"),
        ("actor/optimizer.json", b"{}"),
    ],
)
def test_a_damaged_checkpoint_is_never_taken_for_a_whole_one(
    command, finished, interrupted, file, damage
):
    """The second optimizer.safetensors is a whole file without tensors: a fresh optimiser."""
    checkpoint = interrupted / "checkpoints" / "iteration-2"
    (checkpoint / file).write_bytes(damage)
    arguments = ("train", finished[0], "--run-dir", interrupted, "--resume")
    status, out, err = command(*arguments)
    assert (status, out) == (1, "")
    assert err.startswith("CheckpointError")
    assert MESSAGE.search(err), err
    assert re.search(r"[Dd]elete", err)
    shutil.rmtree(checkpoint)
    assert command(*arguments)[0] == 0


@pytest.mark.parametrize("damage", [b"", b"- a\n", b"\xff\xfe", b"algorithm: {name: grpo"])
def test_a_run_whose_config_is_damaged_is_not_resumed(command, finished, interrupted, damage):
    before = {path.name for path in interrupted.iterdir()}
    (interrupted / "config.yaml").write_bytes(damage)
    status, out, err = command("train", finished[0], "--run-dir", interrupted, "--resume")
    assert (status, out) == (2, "")
    assert "config.yaml" in err
    assert MESSAGE.search(err), err
    assert {path.name for path in interrupted.iterdir()} == before


@pytest.mark.parametrize("what", ["nowhere", "run.yaml", "empty"])
@pytest.mark.parametrize("arguments", [("report",), ("generate", "--prompt", "say")])
def test_what_is_no_run_is_said(command, tmp_path, what, arguments):
    (tmp_path / "run.yaml").write_text("{}")
    (tmp_path / "empty").mkdir()
    name, *options = arguments
    status, out, err = command(name, tmp_path / what, *options)
    assert (status, out) == (2, "")
    assert MESSAGE.search(err), err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--prompt", ""], "has no tokens"),
        (["--prompt", "say " * 40], "Prompt 1 has 40 tokens"),
        (["--prompt", "say", "--max-new-tokens", "32"], "the model reads 32"),
        (["--prompt", "say", "--temperature", "nan"], "temperature nan"),
        (["--prompt", "say \udcff"], "is not text"),
        (["--prompts", "nowhere.txt"], "nowhere.txt"),
        ([], "needs prompts"),
    ],
)
def test_generate_says_what_is_wrong_in_its_own_terms(command, policy_folder, options, said):
    status, out, err = command("generate", policy_folder, *options)
    assert (status, out) == (2, "")
    assert said in err
    assert MESSAGE.search(err), err
    assert "data." not in err
    assert "rollout." not in err


def test_without_torch_planning_works_and_training_says_what_is_missing(
    command, config_file, document, monkeypatch
):
    from flexrlhf.core import plugins

    monkeypatch.setattr(plugins, "find_spec", lambda name: None if name == "torch" else object())
    path = config_file(document("sft"))
    assert command("plan", path)[0] == 0
    for arguments in (("train", path), ("train", path, "--dry-run"), ("generate", path)):
        options = ("--prompt", "say") if arguments[0] == "generate" else ()
        status, out, err = command(*arguments, *options)
        assert (status, out) == (2, "")
        assert "needs the package 'torch', which is not installed" in err
        assert "flexrlhf[train]" in err
        assert MESSAGE.search(err), err


# ---------------------------------------------------------------------------------------- Ctrl-C


def test_ctrl_c_ends_a_run_that_can_go_on_and_whose_folder_was_its_own(
    command, config_file, document, tmp_path
):
    """The program itself, in a process of its own, while another asks for the same folder."""
    keys = {"training.iterations": 100_000, "run.keep_checkpoints": 1}
    arguments = [
        "train",
        config_file(change(document("grpo"), keys)),
        "--run-dir",
        tmp_path / "run",
    ]
    program = [sys.executable, "-m", "flexrlhf.cli", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    metrics = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while not metrics.exists() or metrics.read_text().count("\n") < 5:
            assert process.poll() is None
            time.sleep(0.01)
        status, _, err = command(*arguments, "--resume")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert status == 2
    assert "in use by another process" in err
    assert process.returncode == 1
    assert "RunFailed: The run was interrupted." in said
    assert f"--run-dir {tmp_path / 'run'} --resume" in said
    assert "Traceback" not in said
    assert (tmp_path / "run" / "report.html").is_file()
    # The interrupt may come between a new checkpoint and the removal of the one before.
    complete = (tmp_path / "run" / "checkpoints").glob("iteration-*")
    done = max(int(folder.name.removeprefix("iteration-")) for folder in complete)
    iterations = f"training.iterations={done + 2}"
    assert command(*arguments, "--resume", "--set", iterations)[0] == 0
    rows = map(json.loads, metrics.read_text().splitlines())
    assert [row["iteration"] for row in rows] == list(range(1, done + 3))
