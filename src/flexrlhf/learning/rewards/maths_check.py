"""Compares mathematical answers with math-verify; run as a program, in a child process.

A policy may write an expression that no computer finishes, or one whose text runs code; so this
module is not used in the trainer's own process. It imports neither torch nor the trainer.
"""

from __future__ import annotations

import logging
import re
import sys
from functools import lru_cache
from typing import Any

import math_verify
import sympy

from flexrlhf.learning.data.child_process import serve

_CONFIG = (
    math_verify.LatexExtractionConfig(boxed_match_priority=0),
    math_verify.ExprExtractionConfig(),
)
_ANSWER_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def check(request: tuple[str, str]) -> float | None:
    """Returns 1.0 when the answer of a text equals the right one, else 0.0.

    Where the right answer is a number, a calculation that gives it is no answer: a policy soon
    finds out that it may repeat the question `61 + 19`.

    Args:
        request: the right answer, and the text to judge.

    Returns:
        None when the right answer is nothing mathematical.
    """
    right, text = request
    gold = _parse_right(right)
    if not gold:
        return None
    tagged = _ANSWER_TAGS.findall(text)
    given = _parse(_in_box(tagged[-1]) if tagged else text)
    if given and _is_value(gold[0]) and not _is_value(given[0]):
        return 0.0
    return float(math_verify.verify(gold, given, timeout_seconds=None))


@lru_cache(maxsize=4096)
def _parse_right(right: str) -> list[Any]:
    """Parses a row's answer; of GSM8K's solutions it is what follows `####`."""
    return _parse(_in_box(right.rpartition("####")[2]))


def _in_box(answer: str) -> str:
    r"""Returns an answer that the parser takes whole: `1/2` becomes `\boxed{1/2}`."""
    answer = answer.strip()
    is_marked = not answer or "\\boxed" in answer or "$" in answer
    return answer if is_marked else f"\\boxed{{{answer}}}"


def _parse(text: str) -> list[Any]:
    # The parent's deadline stands in for the parser's own, which needs the main thread's signals.
    return math_verify.parse(text, _CONFIG, parsing_timeout=None)  # pyright: ignore[reportArgumentType]


def _is_value(answer: object) -> bool:
    """Says whether nothing is left to calculate: a number, or a fraction of two."""
    if isinstance(answer, sympy.Number):
        return True
    if not isinstance(answer, sympy.Mul):
        return False
    above = [factor for factor in answer.args if isinstance(factor, sympy.Number)]
    below = [
        factor
        for factor in answer.args
        if isinstance(factor, sympy.Pow)
        and factor.exp == -1
        and isinstance(factor.base, sympy.Number)
    ]
    is_fraction = len(above) + len(below) == len(answer.args) and len(below) <= 1
    return is_fraction and sum(abs(factor) != 1 for factor in above) <= 1


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # math-verify warns that it runs without its own timeout
    serve(check, deadline_s=float(sys.argv[1]))
