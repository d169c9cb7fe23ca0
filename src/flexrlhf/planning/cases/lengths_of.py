"""How long prompts and responses of a case are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import Case
from flexrlhf.planning.costs.lengths import Lengths

_PROMPT_SCALE: Final = 256.0
_RESPONSE_SCALE: Final = 1000.0
_TOKENS_PER_TURN: Final = 300.0
_SHORT_PROMPT: Final = 128.0


@dataclass(frozen=True, slots=True)
class CaseLengths:
    """Tokens of prompts and responses, as they are and as a system that pads sees them."""

    prompt: Lengths
    response: Lengths


def lengths_of(case: Case, taken: Assumptions, *, usual_limit: float = 1024.0) -> CaseLengths:
    """Returns the lengths that a case states, or that follow from a rule.

    A mean that is not stated is where a natural scale and the limit meet, 1 / (1/limit + 1/scale):
    256 tokens for prompts, 1,000 for responses; with tools, 300 tokens for each turn that is
    allowed. Prompt and response together are 128 tokens of prompt, at most half, and the rest.
    """
    total = case.number("sequence_tokens_total")
    if total is not None and case.number("response_tokens_mean") is None:
        return _split(case, total, taken)
    prompt = _lengths(case, "prompt", _PROMPT_SCALE, usual_limit, taken)
    turns = _variant_number(case, "turns")
    scale = max(_RESPONSE_SCALE, (turns or 0.0) * _TOKENS_PER_TURN)
    return CaseLengths(prompt, _lengths(case, "response", scale, usual_limit, taken))


def _split(case: Case, total: float, taken: Assumptions) -> CaseLengths:
    prompt = taken.take("prompt tokens", min(_SHORT_PROMPT, total / 2), "of the total")
    longest = _variant_number(case, "sequence_max")
    response = max(1.0, total - prompt)
    if longest is None or longest <= total:
        return CaseLengths(Lengths.fixed(prompt), Lengths.fixed(response))
    skewed = Lengths.skewed(response, max(response, longest - prompt))
    return CaseLengths(Lengths.fixed(prompt), skewed)


def _lengths(
    case: Case, part: str, scale: float, usual_limit: float, taken: Assumptions
) -> Lengths:
    mean = case.number(f"{part}_tokens_mean")
    longest = case.number(f"{part}_tokens_max")
    if mean == 0:
        return Lengths.fixed(0)
    if longest is None:
        if mean is None:
            longest = taken.take(f"{part}_tokens_max", usual_limit, "usual")
        else:
            return Lengths.fixed(mean)
    if mean is None:
        mean = taken.take(
            f"{part}_tokens_mean",
            float(round(1 / (1 / longest + 1 / scale))),
            f"where the limit meets {scale:g}",
        )
    if mean > longest:
        taken.note(f"{part}_tokens_max={mean:g} (not below the mean)")
    return Lengths.skewed(max(mean, 1.0), max(mean, longest, 1.0))


def _variant_number(case: Case, key: str) -> float | None:
    try:
        return float(case.variant[key])
    except (KeyError, ValueError):
        return None
