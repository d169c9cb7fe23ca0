"""A whole run whose models are next to nothing: what is left are program and libraries."""

from __future__ import annotations

import json
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
from flexrlhf.runtime import stages
from flexrlhf.runtime.profiling.subjects import VOCABULARY, architecture

_WORDS: Final = tuple(f"w{number}" for number in range(VOCABULARY - 1))
_WIDTH, _LAYERS = 64, 2


def tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of numbered words and an end token."""
    words = {word: number for number, word in enumerate((*_WORDS, "<end>"))}
    model = Tokenizer(WordLevel(words, unk_token=_WORDS[0]))
    model.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>")


def process_bytes(threads: int) -> float:
    """Returns the most bytes that a PPO run of four tiny models holds in its second iteration."""
    with TemporaryDirectory(prefix="flexrlhf-profile-") as name:
        folder = Path(name)
        tokenizer().save_pretrained(folder / "tokenizer")
        rows = ({"prompt": " ".join(_WORDS[n : n + 4])} for n in range(16))
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "prompts.jsonl").write_text(lines, encoding="utf-8")
        config = with_threads(resolve(build_config(_document(), folder=folder)), threads)
        prepared = stages.prepare(config, [one_device_plan(spec_of(config))], folder / "run")
        (folder / "run").mkdir()
        stages.run(prepared, {}, stages.SilentListener())
        last = stages.metrics(prepared.stages[0])[-1]
    return float(last["memory/peak_bytes"])


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
