"""Requests that wait for room, and the waves in which their answers begin."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from flexrlhf.core.errors import DataError
from flexrlhf.learning.rollout.protocol import Request


@dataclass(frozen=True, slots=True)
class Wave:
    """Answers that start together, each naming its prompt among the distinct ones."""

    prompts: tuple[tuple[int, ...], ...]
    prompt_of_answer: tuple[int, ...]
    sample_ids: tuple[int, ...]
    is_cut: bool = False
    """The next wave begins with more answers to the last one's prompt."""

    @property
    def prompt_lengths(self) -> list[int]:
        """Prompt tokens of each answer."""
        return [len(self.prompts[index]) for index in self.prompt_of_answer]


def check_requests(
    requests: Sequence[Request],
    *,
    max_new_tokens: int,
    vocabulary_size: int,
    max_positions: int | None,
) -> None:
    """Refuses requests that the model cannot answer.

    Raises:
        DataError: a prompt is empty, has a token outside the vocabulary or leaves too few of the
            model's positions, or a sample id is negative or occurs twice.
    """
    seen: set[int] = set()
    for request in requests:
        tokens = request.prompt_tokens
        if not tokens:
            raise DataError(
                f"The prompt of sample {request.sample_ids} is empty.",
                "A prompt needs at least one token.",
                "Remove the row, or add a begin token.",
            )
        if not 0 <= min(tokens) <= max(tokens) < vocabulary_size:
            raise DataError(
                f"A prompt has token {max(tokens)}, but the actor knows {vocabulary_size} tokens.",
                "Tokenizer and actor must share one vocabulary.",
                "Give the actor's own tokenizer, or an actor of the tokenizer's vocabulary.",
            )
        if max_positions is not None and len(tokens) + max_new_tokens > max_positions:
            raise DataError(
                f"A prompt of {len(tokens)} tokens and {max_new_tokens} new ones exceed the "
                f"actor's {max_positions} positions.",
                "Prompt and response together must fit.",
                "Lower rollout.max_new_tokens or data.max_prompt_tokens.",
            )
        for sample_id in request.sample_ids:
            if sample_id < 0 or sample_id in seen:
                raise DataError(
                    f"Sample id {sample_id} is negative or occurs twice.",
                    "Ids seed the answers: every answer needs its own.",
                    "Number the samples by prompt draw and answer.",
                )
            seen.add(sample_id)


class WaitingRequests:
    """Requests whose answers have not begun, in order.

    Args:
        requests: each with at least one answer.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = deque(request for request in requests if request.sample_ids)

    def __bool__(self) -> bool:
        return bool(self._requests)

    def take(self, num_free: int, *, keeps_groups: bool) -> Wave:
        """Takes as many answers as there is room for.

        Args:
            num_free: answers that may begin, at least 1.
            keeps_groups: a group waits rather than being cut, so that its prompt is read once,
                unless it alone exceeds the room.
        """
        taken: list[Request] = []
        while self._requests and num_free:
            request = self._requests.popleft()
            if len(request.sample_ids) > num_free:
                if keeps_groups and taken:
                    self._requests.appendleft(request)
                    return _wave(taken, is_cut=False)
                taken.append(self._cut(request, num_free))
                return _wave(taken, is_cut=True)
            taken.append(request)
            num_free -= len(request.sample_ids)
        return _wave(taken, is_cut=False)

    def _cut(self, request: Request, size: int) -> Request:
        """Returns the first answers of a request; the others go on waiting."""
        ids = request.sample_ids
        self._requests.appendleft(Request(request.prompt_tokens, ids[size:]))
        return Request(request.prompt_tokens, ids[:size])


def _wave(requests: Sequence[Request], *, is_cut: bool) -> Wave:
    index_of_prompt: dict[tuple[int, ...], int] = {}
    prompt_of_answer: list[int] = []
    for request in requests:
        index = index_of_prompt.setdefault(request.prompt_tokens, len(index_of_prompt))
        prompt_of_answer.extend([index] * len(request.sample_ids))
    sample_ids = tuple(sample_id for request in requests for sample_id in request.sample_ids)
    return Wave(tuple(index_of_prompt), tuple(prompt_of_answer), sample_ids, is_cut)
