"""The documents say what is there: files, links, commands, configs and metrics are tried."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from flexrlhf import app
from flexrlhf.cli import cli
from flexrlhf.config.cluster import RayCluster
from flexrlhf.config.loading import build_config, load_config
from flexrlhf.config.resolution import resolve
from flexrlhf.planning.cluster.file_form import load_cluster
from flexrlhf.planning.search.stage_plans import stage_plans

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "flexrlhf"
FILES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = [folder.parent for folder in sorted(PACKAGE.rglob("__init__.py"))][1:]
TOP_FOLDERS = {"src", "tests", "docs", "examples", *(room.name for room in PACKAGE.iterdir())}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED_FILE = re.compile(r"`([\w-]+\.(?:yaml|jsonl|py))`")
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
OF_WORKERS = {"weights/bytes", "share/communication"}
"""Metrics that a run in one process lacks."""
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block, and the file that the paragraph before it calls it."""

    language: str
    text: str
    file_name: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        paragraph = text[: match.start()].rstrip().rpartition("\n\n")[2]
        names = NAMED_FILE.findall(paragraph)
        found.append(Block(match[1], match[2], names[-1] if names else None))
    return found


def configs(*, to_plan: bool) -> list[Any]:
    """Every YAML block as (page, block): those about machines and placement, or all others."""
    return [
        pytest.param(page, block, id=f"{page.stem}-{block.file_name or number}")
        for page in FILES
        for number, block in enumerate(blocks(page))
        if block.language == "yaml"
        and bool({"nodes", "cluster", "placement"} & set(yaml.safe_load(block.text))) == to_plan
    ]


def write_files_of(page: Path) -> None:
    for block in blocks(page):
        if block.file_name:
            Path(block.file_name).write_text(block.text)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of ten words that reads any text, with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<end>", *"abcdefgh"]
    model = models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path_factory.mktemp("models")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<pad>",
        eos_token="<end>",
        chat_template="{% for m in messages %}{{ m.content }} {% endfor %}",
    ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("page", FILES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path):
    for target in LINK.findall(prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in map(slug, HEADING.findall(prose(file))), target


@pytest.mark.parametrize("page", FILES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path):
    for name in IN_BACKTICKS.findall(prose(page)):
        is_path = re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", name) and "/" in name
        is_ours = name.partition("/")[0] in TOP_FOLDERS or name.endswith((".py", ".md", ".toml"))
        if is_path and is_ours:
            bases = (ROOT, PACKAGE, page.parent)
            assert any((base / name).exists() for base in bases), name


@pytest.mark.parametrize("page", FILES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_modules_and_targets_exist(page: Path):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [line for block in blocks(page) for line in block.text.splitlines()]
    for said in (*IN_BACKTICKS.findall(prose(page)), *commands):
        if re.fullmatch(r"flexrlhf(\.\w+)+", said):
            importlib.import_module(said)
        if made := re.match(r"make ([\w-]+)", said):
            assert made[1] in targets, said


@pytest.mark.parametrize("page", FILES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_take_their_options(page: Path):
    known: Any = typer.main.get_command(cli)
    shell = [b.text for b in blocks(page) if b.language == "bash"]
    lines = [line for text in shell for line in text.splitlines()]
    for line in (*lines, *IN_BACKTICKS.findall(prose(page))):
        if line.startswith("flexrlhf ") and not line.startswith("flexrlhf --"):
            _, name, *arguments = shlex.split(line)
            command = known.commands[name]
            if arguments:  # in a sentence a command may stand alone
                command.make_context(name, arguments)


@pytest.mark.parametrize(("page", "block"), configs(to_plan=False))
def test_configs_pass_a_dry_run(
    page: Path,
    block: Block,
    tokenizer_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """A config is tried as it stands beside the files of its page, a part of one on a base."""
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    for model in ("policy", "reward"):
        Path("models", model).symlink_to(tokenizer_folder)
    Path("prompts.jsonl").write_text('{"prompt": "a b", "answer": "1"}\n')
    Path("base.py").write_text("def score(completions): ...\n")
    write_files_of(page)
    document = yaml.safe_load(block.text)
    if "algorithm" in document or "stages" in document:
        config = load_config(block.file_name or pytest.fail("A whole config has a file name."))
    else:
        base = {
            "algorithm": {"name": "grpo"},
            "model": {"actor": {"path": "models/policy"}},
            "data": {"prompts": {"path": "prompts.jsonl"}},
            "reward": {"functions": [{"path": "base.py:score"}]},
        }
        config = build_config(base | document)
    assert "colocated" in app.dry_run(resolve(config))


@pytest.mark.parametrize(("page", "block"), configs(to_plan=True))
def test_requests_can_be_planned(
    page: Path, block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A cluster is read; a part of a request is laid on the page's `request.yaml`.

    A page about training has none: its parts are laid on the example for workers.
    """
    monkeypatch.chdir(tmp_path)
    write_files_of(page)
    document = yaml.safe_load(block.text)
    if "nodes" in document:
        assert load_cluster(block.file_name or pytest.fail("A cluster is a file.")).devices
        return
    quick = {"placement": {"strategy": "colocated"}}
    own = Path("request.yaml")
    base = own if own.is_file() else ROOT / "examples" / "workers" / "ppo.yaml"
    config = build_config(quick | yaml.safe_load(base.read_text()) | document)
    if isinstance(config.cluster, RayCluster):  # only Ray knows its machines
        return
    # What another node would give, which `flexrlhf plan` says too, takes minutes for all pages.
    assert stage_plans(resolve(config), advised=False)[0].ranked.best.predicted is not None


def test_the_tree_names_every_room():
    """Two levels of them; what lies deeper belongs to its room."""
    tree = (ROOT / "README.md").read_text()
    for room in ROOMS:
        if len(room.relative_to(PACKAGE).parts) > 2:
            continue
        assert re.search(rf"^ +{room.name}/ ", tree, re.MULTILINE) or room.name == "timeline"


def _run(name: str, sections: dict[str, Any], tokenizer_folder: Path) -> Path:
    """Trains for an iteration on models of one narrow layer; returns the run folder."""
    architecture = {
        "model_type": "llama",
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    fresh = {"init": "random", "architecture": architecture, "tokenizer": str(tokenizer_folder)}
    roles = sections.pop("roles")
    document = {
        "algorithm": {"name": name},
        "model": dict.fromkeys(roles, fresh),
        "rollout": {"max_new_tokens": 4, "samples_per_prompt": 2},
        "training": {"iterations": 1, "prompts_per_iteration": 2, "threads": 1},
        "run": {"trackers": []},
        **sections,
    }
    return app.train(build_config(document), run_dir=Path(name)).run_dir


def test_the_metrics_page_has_every_key_and_no_other(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    row = {"prompt": "a b", "completion": "c", "chosen": "d e", "rejected": "f"}
    Path("rows.jsonl").write_text(2 * (json.dumps(row) + "\n"))
    rows = {"path": "rows.jsonl"}
    prompts = {"data": {"prompts": rows, "evaluation": rows, "max_prompt_tokens": 4}}
    proposed = {
        "max_new_tokens": 4,
        "samples_per_prompt": 2,
        "speculation": "draft_model",
        "draft_model": "reference",
        "kept_prefix_tokens": 64,
    }
    jobs: dict[str, dict[str, Any]] = {
        "ppo": {
            "roles": ["actor", "reward"],
            **prompts,
            "algorithm": {"name": "ppo", "importance": "token"},
        },
        "grpo": {"roles": ["actor", "reward", "reference"], **prompts, "rollout": proposed},
        "sft": {"roles": ["actor"], "data": {"supervised": rows, "evaluation": rows}},
        "reward_model": {"roles": ["reward"], "data": {"preferences": rows, "evaluation": rows}},
        "dpo": {"roles": ["actor"], "data": {"preferences": rows, "evaluation": rows}},
    }
    folders = [_run(name, sections, tokenizer_folder) for name, sections in jobs.items()]
    metrics, samples = (
        {
            key
            for folder in folders
            for line in (folder / file).read_text().splitlines()
            for key in json.loads(line)
        }
        for file in ("metrics.jsonl", "samples.jsonl")
    )
    page, _, samples_page = (ROOT / "docs" / "metrics.md").read_text().partition("## samples.jsonl")
    found = {key.replace("/model", "/NAME").replace("_model", "_NAME") for key in metrics}
    assert found | OF_WORKERS == set(documented_keys(page))
    assert samples == set(documented_keys(samples_page))


def documented_keys(page: str) -> list[str]:
    """What stands in backticks in the first column of the tables."""
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    return [key for row in rows for key in IN_BACKTICKS.findall(row.split("|")[1])]
