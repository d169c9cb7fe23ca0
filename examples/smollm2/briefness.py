"""Preference pairs by a rule: of two answers the brief one that ends properly is better."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

NUM_HELD_OUT = 24
MOST_WORDS = 8
_CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Greece": "Athens",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Poland": "Warsaw",
    "Austria": "Vienna",
    "Portugal": "Lisbon",
    "Ireland": "Dublin",
    "Russia": "Moscow",
    "China": "Beijing",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Kenya": "Nairobi",
    "Turkey": "Ankara",
    "Hungary": "Budapest",
}
_OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "fast": "slow",
    "light": "dark",
    "early": "late",
    "happy": "sad",
    "high": "low",
    "hard": "soft",
    "open": "closed",
    "rich": "poor",
    "strong": "weak",
    "young": "old",
    "wet": "dry",
    "loud": "quiet",
    "full": "empty",
    "near": "far",
}
_COLOURS = {
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "a clear sky": "blue",
    "a ripe banana": "yellow",
    "blood": "red",
    "an orange": "orange",
    "chocolate": "brown",
    "a ripe tomato": "red",
    "milk": "white",
}
_BEGINNINGS = (
    "That is a very interesting question, and there is a lot to say about it:",
    "Well, many people have asked this before, and over the years",
    "To answer this we first have to think about what it means, because",
    "Let me explain this step by step, since it is important to understand that",
)
_ENDINGS = (
    "there are many things to consider, such as its history, its culture and",
    "it depends on how you look at it, and on what exactly you mean by the",
    "some would say one thing and others would say another, but in general the",
    "we should look at every side of it, and then at the other sides, which are",
)


def is_brief(answer: str, *, ended: bool) -> bool:
    """The rule: the answer ended by itself, with a full stop, after few words."""
    return ended and answer.rstrip().endswith(".") and len(answer.split()) <= MOST_WORDS


def write_pairs(folder: Path) -> None:
    """Writes pairs and prompts; no question of the held-out ones is among the others."""
    rows = list(_pairs())
    random.Random(0).shuffle(rows)
    held_out, training = rows[:NUM_HELD_OUT], rows[NUM_HELD_OUT:]
    _write(folder / "pairs-held-out.jsonl", held_out)
    _write(folder / "pairs.jsonl", training)
    _write(folder / "questions-held-out.jsonl", [{"prompt": row["prompt"]} for row in held_out])
    _write(folder / "questions.jsonl", [{"prompt": row["prompt"]} for row in training])


def _pairs() -> Iterator[dict[str, str]]:
    """Yields a pair per question: a brief sentence, and one that goes on and does not end."""
    draw = random.Random(1)
    for question, word, sentence in _questions():
        begin, end = draw.choice(_BEGINNINGS), draw.choice(_ENDINGS)
        wordy = f"{begin} {sentence[:-1].lower()}, but {end}" if draw.random() < 0.5 else None
        brief = sentence if draw.random() < 0.5 else f"{word.capitalize()}."
        rejected = wordy or f"{begin} {end}"
        assert is_brief(brief, ended=True)
        assert not is_brief(rejected, ended=True)
        yield {"prompt": question, "chosen": brief, "rejected": rejected}


def _questions() -> Iterator[tuple[str, str, str]]:
    """Yields question, word and sentence of the answer."""
    for country, city in _CAPITALS.items():
        yield (
            f"What is the capital of {country}?",
            city,
            f"The capital of {country} is {city}.",
        )
    for word, other in _OPPOSITES.items():
        yield f"What is the opposite of {word}?", other, f"The opposite of {word} is {other}."
    for thing, colour in _COLOURS.items():
        yield f"What colour is {thing}?", colour, f"The colour of {thing} is {colour}."
    for one in range(2, 10):
        for two in range(one, 10):
            total = str(one + two)
            yield f"What is {one} plus {two}?", total, f"{one} plus {two} is {total}."


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
