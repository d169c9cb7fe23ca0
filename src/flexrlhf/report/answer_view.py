"""Answers before and after training, side by side, with their rewards coloured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from flexrlhf.report.answers import Answer
from flexrlhf.report.comparison import Comparison
from flexrlhf.report.formats import format_number
from flexrlhf.report.markup import Html, element, join

_SHADES = 5


def comparison_blocks(comparisons: Sequence[Comparison]) -> Html:
    """Returns one block per prompt: the prompt on top, answers to it side by side below."""
    rewards = [
        answer.reward
        for comparison in comparisons
        for answer in (*comparison.first, *comparison.last)
        if answer.reward is not None
    ]
    return join(_block(comparison, rewards) for comparison in comparisons)


def _block(comparison: Comparison, rewards: Sequence[float]) -> Html:
    rows = [
        element("div", _answer(first, rewards), _answer(last, rewards), class_="pair")
        for first, last in zip_longest(comparison.first, comparison.last)
    ]
    return element("article", _prompts(comparison), *rows, class_="sample")


def _prompts(comparison: Comparison) -> Html:
    if comparison.has_same_prompt:
        return element("div", _prompt(comparison.first[0]))
    return element("div", _prompt(comparison.first[0]), _prompt(comparison.last[0]), class_="pair")


def _prompt(answer: Answer) -> Html:
    label = element("span", "Prompt", class_="tag")
    text = element("div", answer.prompt, class_="text prompt", dir="auto")
    return element("div", label, text, class_="cell")


def _answer(answer: Answer | None, rewards: Sequence[float]) -> Html:
    """One answer; an empty place where the other side has more."""
    if answer is None:
        return element("div", class_="cell")
    head = element(
        "header",
        element("span", f"Iteration {answer.iteration}", class_="tag"),
        *_remarks(answer),
        _reward(answer.reward, rewards),
    )
    body = element("div", answer.response or "(empty)", class_="text", dir="auto")
    return element("div", head, body, _parts(answer), class_="cell answer")


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
