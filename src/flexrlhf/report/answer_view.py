"""Answers before and after training, side by side, with their rewards coloured."""

from __future__ import annotations

from collections.abc import Sequence

from flexrlhf.report.answers import Answer, AnswerPair
from flexrlhf.report.formats import format_number
from flexrlhf.report.markup import Html, element, join

_SHADES = 5


def answer_pairs(pairs: Sequence[AnswerPair]) -> Html:
    """Returns one block per pair: the prompt on top, the two answers below it."""
    rewards = [
        answer.reward
        for pair in pairs
        for answer in (pair.first, pair.last)
        if answer.reward is not None
    ]
    return join(_pair(pair, rewards) for pair in pairs)


def _pair(pair: AnswerPair, rewards: Sequence[float]) -> Html:
    answers = (_answer(pair.first, "first", rewards), _answer(pair.last, "last", rewards))
    if pair.has_same_prompt:
        head = element("div", _prompt(pair.first), class_="pair-prompt")
        return element("article", head, element("div", *answers, class_="pair"), class_="sample")
    columns = (
        element("div", _prompt(answer), body)
        for answer, body in zip((pair.first, pair.last), answers, strict=True)
    )
    return element("article", element("div", *columns, class_="pair"), class_="sample")


def _prompt(answer: Answer) -> Html:
    return join(
        [
            element("span", "Prompt", class_="tag"),
            element("div", answer.prompt, class_="text prompt", dir="auto"),
        ]
    )


def _answer(answer: Answer, side: str, rewards: Sequence[float]) -> Html:
    head = element(
        "header",
        element("span", f"Iteration {answer.iteration}", class_="tag"),
        *_remarks(answer),
        _reward(answer.reward, rewards),
    )
    body = element("div", answer.response or "(empty)", class_="text", dir="auto")
    return element("div", head, body, _parts(answer), class_=f"answer {side}")


def _remarks(answer: Answer) -> list[Html]:
    words: list[str] = []
    if answer.response_tokens is not None:
        words.append(f"{answer.response_tokens} tokens")
    if not answer.finished:
        words.append("cut at the length limit")
    return [element("span", ", ".join(words), class_="quiet")] if words else []


def _reward(reward: float | None, rewards: Sequence[float]) -> Html:
    if reward is None:
        return element("span", "not scored", class_="reward")
    shade = _shade(reward, rewards)
    return element("span", f"reward {format_number(reward)}", class_=f"reward shade-{shade}")


def _shade(reward: float, rewards: Sequence[float]) -> int:
    """Place of the reward between the lowest (0) and the highest shown (4); 2 if all are alike."""
    lowest, highest = min(rewards), max(rewards)
    if not highest > lowest:
        return _SHADES // 2
    return min(_SHADES - 1, int((reward - lowest) / (highest - lowest) * _SHADES))


def _parts(answer: Answer) -> Html:
    if len(answer.reward_parts) < 2:
        return Html("")
    parts = (
        element("span", f"{name} {format_number(value)}", class_="part")
        for name, value in answer.reward_parts.items()
    )
    return element("footer", *parts)
