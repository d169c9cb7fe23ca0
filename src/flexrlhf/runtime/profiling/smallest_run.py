"""A whole run whose models are next to nothing: what is left are program and libraries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from flexrlhf.config.loading import build_config
from flexrlhf.config.resolution import resolve, spec_of, with_threads
from flexrlhf.planning.placement.one_device import one_device_plan
from flexrlhf.planning.search.stage_plans import cluster_of, stage_plans
from flexrlhf.runtime import stages
from flexrlhf.runtime.profiling.subjects import VOCABULARY, architecture
from flexrlhf.runtime.ray_cluster.processes import worker_processes

_WORDS: Final = tuple(f"w{number}" for number in range(VOCABULARY - 1))
_WIDTH, _LAYERS = 64, 2
_WORKERS: Final = 2


def tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of numbered words and an end token."""
    words = {word: number for number, word in enumerate((*_WORDS, "<end>"))}
    model = Tokenizer(WordLevel(words, unk_token=_WORDS[0]))
    model.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>")


def process_bytes(threads: int) -> float:
    """Returns the most bytes that a PPO run of four tiny models holds in its second iteration."""
    with _files() as folder:
        config = with_threads(resolve(build_config(_document(), folder=folder)), threads)
        prepared = stages.prepare(config, [one_device_plan(spec_of(config))], folder / "run")
        stages.run(prepared, {}, stages.SilentListener())
        return _peak_bytes(prepared)


def worker_bytes() -> float:
    """Returns the most bytes that either of two workers holds in such a run.

    Raises:
        EngineMissing: Ray is not installed.
    """
    with _files() as folder:
        own = {"cluster": {"workers": _WORKERS}, "placement": {"strategy": "colocated"}}
        config = resolve(build_config(_document() | own, folder=folder))
        cluster = cluster_of(config.cluster)
        plan = stage_plans(config, cluster, advised=False)[0].ranked.best
        with worker_processes(config.cluster, cluster, 1) as processes:
            prepared = stages.prepare(with_threads(config, 1), [plan], folder / "run")
            stages.run(prepared, {}, stages.SilentListener(), cluster, processes)
        return _peak_bytes(prepared)


@contextmanager
def _files() -> Iterator[Path]:
    """Yields a folder with what the run reads, and room for what it writes."""
    with TemporaryDirectory(prefix="flexrlhf-profile-") as name:
        folder = Path(name)
        tokenizer().save_pretrained(folder / "tokenizer")
        rows = ({"prompt": " ".join(_WORDS[n : n + 4])} for n in range(16))
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "prompts.jsonl").write_text(lines, encoding="utf-8")
        (folder / "run").mkdir()
        yield folder


def _peak_bytes(prepared: stages.PreparedRun) -> float:
    return float(stages.metrics(prepared.stages[0])[-1]["memory/peak_bytes"])


def _document() -> dict[str, Any]:
    tiny = {"init": "random", "architecture": architecture(_WIDTH, _LAYERS)}
    actor = {**tiny, "tokenizer": "tokenizer"}
    return {
        "algorithm": {"name": "ppo"},
        "model": {"actor": actor, "critic": tiny, "reward": tiny},
        "data": {"prompts": {"path": "prompts.jsonl"}, "max_prompt_tokens": 8},
        "rollout": {"max_new_tokens": 8, "samples_per_prompt": 1},
        "training": {"iterations": 2, "prompts_per_iteration": 16},
    }
