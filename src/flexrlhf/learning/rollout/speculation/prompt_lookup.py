"""Proposals out of the text itself: where its last tokens stood before, what followed them there.

Source: Saxena 2023, "Prompt lookup decoding" (github.com/apoorvumang/prompt-lookup-decoding). Here
the latest place counts, not the first, and what is proposed may run into itself, as in LZ77, so
that a text that has begun to repeat itself is proposed to go on so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from flexrlhf.learning.rollout.waves import Wave

_LONGEST: Final = 3
"""Tokens that are looked for at first, and then ever fewer."""
_SHORTEST: Final = 2
"""A single token stands in too many places to say what follows."""

_Places = dict[tuple[int, ...], int]
"""A few tokens to the place behind where they stood last."""


class PromptLookup:
    """See `Drafter`. Answers that share a prompt share what is known of it."""

    def __init__(self) -> None:
        self._texts: list[_Text] = []

    def begin(self, wave: Wave) -> None:
        """See `Drafter`."""
        places = [_places_in(prompt) for prompt in wave.prompts]
        self._texts += [
            _Text(wave.prompts[index], places[index]) for index in wave.prompt_of_answer
        ]

    def append(self, tokens: Sequence[Sequence[int]]) -> None:
        """See `Drafter`."""
        for text, drawn in zip(self._texts, tokens, strict=True):
            text.append(drawn)

    def propose(self, most: Sequence[int]) -> list[list[int]]:
        """See `Drafter`."""
        return [text.propose(count) for text, count in zip(self._texts, most, strict=True)]

    def keep(self, rows: Sequence[int]) -> None:
        """See `Drafter`."""
        self._texts = [self._texts[row] for row in rows]


class _Text:
    """A prompt and its answer so far.

    Args:
        prompt: its tokens.
        places: in the prompt, shared by all answers to it.
    """

    def __init__(self, prompt: Sequence[int], places: Mapping[tuple[int, ...], int]) -> None:
        self._tokens = list(prompt)
        self._prompt_places = places
        self._places: _Places = {}
        """Of what the answer has a part in."""

    def append(self, drawn: Sequence[int]) -> None:
        for token in drawn:
            _note(self._places, self._tokens, len(self._tokens))
            self._tokens.append(token)

    def propose(self, most: int) -> list[int]:
        start = self._found()
        if start is None:
            return []
        proposed: list[int] = []
        end = len(self._tokens)
        for place in range(start, start + most):
            proposed.append(self._tokens[place] if place < end else proposed[place - end])
        return proposed

    def _found(self) -> int | None:
        """Returns the place behind the latest other occurrence of the last tokens."""
        for size in range(_LONGEST, _SHORTEST - 1, -1):
            last = tuple(self._tokens[-size:])
            place = self._places.get(last, self._prompt_places.get(last))
            if place is not None:
                return place
        return None


def _places_in(tokens: Sequence[int]) -> _Places:
    """Returns where each few tokens stand that something follows."""
    places: _Places = {}
    for end in range(1, len(tokens)):
        _note(places, tokens, end)
    return places


def _note(places: _Places, tokens: Sequence[int], end: int) -> None:
    """Notes the tokens before `end`, behind which one comes."""
    for size in range(_SHORTEST, min(_LONGEST, end) + 1):
        places[tuple(tokens[end - size : end])] = end
