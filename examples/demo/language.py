"""A language small enough to learn in a minute, and a rule that says which answers are good.

A prompt asks about a thing ("tell me about the garden"); an answer is one to three sentences.
`write_answer` is how the supervised data and both answers of a preference pair are written: it
mixes kind, rude and plain words and often speaks of the wrong thing. `true_score` is the rule
behind the preferences. Training never sees the rule, only which of two answers it prefers.
"""

from __future__ import annotations

import random
import re

THINGS = [
    *("tea", "soup", "bread", "garden", "river", "song", "story", "house"),
    *("cat", "dog", "bird", "boat", "coat", "road", "hill", "lamp"),
]
KIND = ["warm", "lovely", "bright", "gentle", "fresh", "sweet", "calm", "pretty"]
RUDE = ["awful", "cold", "bitter", "ugly", "noisy", "dull", "broken", "nasty"]
PLAIN = ["small", "old", "green", "round", "long", "square", "grey", "new"]
OTHER = [
    "tell",
    "me",
    "about",
    "the",
    "is",
    "and",
    "it",
    "i",
    "like",
    "hate",
    "saw",
    ".",
    "<pad>",
    "<end>",
]
VOCABULARY = [*OTHER, *THINGS, *KIND, *RUDE, *PLAIN]
QUALITY = f"(?:{'|'.join((*KIND, *RUDE, *PLAIN))})"
SENTENCE = re.compile(
    rf"the (?:{'|'.join(THINGS)}) is {QUALITY} and {QUALITY}|it is {QUALITY}|i (?:like|hate|saw) it"
)


def write_prompt(generator: random.Random) -> str:
    """Returns a prompt about a random thing."""
    return f"tell me about the {generator.choice(THINGS)}"


def write_answer(prompt: str, generator: random.Random) -> str:
    """Returns an answer of one to three sentences, good or bad as it comes."""
    asked = prompt.rsplit(maxsplit=1)[-1]
    thing = asked if generator.random() < 0.5 else generator.choice(THINGS)
    sentences = [f"the {thing} is {_quality(generator)} and {_quality(generator)} ."]
    if generator.random() < 0.6:
        sentences.append(f"it is {_quality(generator)} .")
    if generator.random() < 0.5:
        sentences.append(f"i {generator.choice(['like', 'hate', 'saw'])} it .")
    return " ".join(sentences)


def garble(answer: str, generator: random.Random) -> str:
    """Returns an answer that breaks off early or lacks some of its words."""
    words = answer.split()
    if generator.random() < 0.5:
        return " ".join(words[: generator.randrange(len(words))])
    kept = [word for word in words if generator.random() < 0.7]
    return " ".join(kept[:-1] if kept == words else kept)


def true_score(prompt: str, answer: str) -> float:
    """Returns how good an answer is.

    Two points for speaking of the asked thing alone and two lost otherwise; a point for each
    different kind word and for `like`, one lost for each rude word and for `hate`, and one for each
    quality said twice. Three are lost for each sentence that is none, and for saying nothing.
    """
    words = answer.split()
    asked = prompt.rsplit(maxsplit=1)[-1]
    qualities = [word for word in words if word in {*KIND, *RUDE, *PLAIN}]
    score = 2.0 if {word for word in words if word in THINGS} == {asked} else -2.0
    score += len({word for word in qualities if word in KIND}) + ("like" in words)
    score -= sum(word in RUDE for word in qualities) + ("hate" in words)
    score -= len(qualities) - len(set(qualities))
    return score - 3.0 * _num_broken_sentences(answer)


def _num_broken_sentences(answer: str) -> int:
    *sentences, rest = (part.strip() for part in answer.split("."))
    broken = sum(SENTENCE.fullmatch(sentence) is None for sentence in sentences)
    return broken + bool(rest or not sentences)


def _quality(generator: random.Random) -> str:
    return generator.choice(generator.choice([KIND, RUDE, PLAIN]))
