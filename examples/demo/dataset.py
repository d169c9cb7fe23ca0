"""Writes the demo's tokenizer and data sets into a folder."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

from language import VOCABULARY, garble, true_score, write_answer, write_prompt
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def write_dataset(folder: Path, *, seed: int) -> None:
    """Writes tokenizer, supervised rows, preference pairs, and training and held-out prompts."""
    generator = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    _tokenizer().save_pretrained(folder / "tokenizer")
    _write(folder / "supervised.jsonl", (_supervised_row(generator) for _ in range(4000)))
    _write(folder / "supervised-held-out.jsonl", (_supervised_row(generator) for _ in range(200)))
    _write(folder / "preferences.jsonl", (_preference_row(generator) for _ in range(12000)))
    _write(folder / "preferences-held-out.jsonl", (_preference_row(generator) for _ in range(200)))
    for name, count in (("prompts", 2000), ("prompts-held-out", 64)):
        rows = ({"prompt": write_prompt(generator)} for _ in range(count))
        _write(folder / f"{name}.jsonl", rows)


def _tokenizer() -> PreTrainedTokenizerFast:
    words = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", unk_token="<pad>"
    )


def _supervised_row(generator: random.Random) -> dict[str, str]:
    prompt = write_prompt(generator)
    return {"prompt": prompt, "completion": write_answer(prompt, generator)}


def _preference_row(generator: random.Random) -> dict[str, str]:
    """Returns two answers of different worth, the better one as `chosen`.

    Some answers are garbled: a reward model that never saw a broken sentence would not mind one.
    """
    prompt = write_prompt(generator)
    while True:
        answers = [write_answer(prompt, generator) for _ in range(2)]
        if generator.random() < 0.4:
            answers[0] = garble(answers[generator.randrange(2)], generator)
        worse, better = sorted(answers, key=lambda answer: true_score(prompt, answer))
        if true_score(prompt, worse) < true_score(prompt, better):
            return {"prompt": prompt, "chosen": better, "rejected": worse}


def _write(path: Path, rows: Iterable[dict[str, str]]) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
