"""Metrics that are drawn as one line each: their titles, units, and what a reader looks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexrlhf.report.colours import MAIN_COLOUR, ROLE_COLOURS


@dataclass(frozen=True, slots=True)
class PlainMetric:
    """A chart of one metric, and of the same of other roles (`critic/grad_norm`)."""

    key: str
    title: str
    unit: str
    caption: str
    """What the reader should look for."""
    colour: str = MAIN_COLOUR
    scale: float = 1.0
    """Of the value drawn to the value in metrics.jsonl."""
    is_noisy: bool = True
    is_drawn_if_it_changes: bool = False
    """A constant then has no chart."""


KL: Final = PlainMetric(
    "kl/mean",
    "KL to the reference",
    "nats per token",
    "Distance from the starting policy; a steep climb often means that the reward is gamed.",
)
PLAIN_METRICS: Final = (
    PlainMetric(
        "loss/policy",
        "Policy loss",
        "",
        "Clipped surrogate; its level means little, a jump means trouble.",
        ROLE_COLOURS["actor"],
    ),
    PlainMetric(
        "loss/value",
        "Value loss",
        "",
        "Error of the critic; it should fall while the critic learns to foresee the reward.",
        ROLE_COLOURS["critic"],
    ),
    PlainMetric(
        "loss/kl",
        "KL loss",
        "",
        "The KL term that is added to the policy loss.",
        ROLE_COLOURS["reference"],
    ),
    PlainMetric(
        "kl/coefficient",
        "KL coefficient",
        "",
        "What a nat of KL costs; it follows the target of the KL.",
        ROLE_COLOURS["reference"],
        is_noisy=False,
        is_drawn_if_it_changes=True,
    ),
    PlainMetric(
        "loss/preference",
        "Preference loss",
        "nats",
        "ln 2 ≈ 0.693 is guessing; lower means chosen answers score above rejected ones.",
        ROLE_COLOURS["reward"],
    ),
    PlainMetric(
        "accuracy/preference",
        "Preference accuracy",
        "%",
        "Pairs of the batch whose chosen answer scores above the rejected one.",
        ROLE_COLOURS["reward"],
        scale=100.0,
    ),
    PlainMetric(
        "implicit_reward/margin",
        "Implicit reward margin",
        "nats",
        "How much more the policy prefers the chosen answers than the reference does.",
        ROLE_COLOURS["reward"],
    ),
    PlainMetric(
        "logprobs/chosen",
        "Log-probs of chosen answers",
        "nats per answer",
        "A steep fall means that the policy loses the good answers along with the bad ones.",
        ROLE_COLOURS["actor"],
    ),
    PlainMetric(
        "loss/supervised",
        "Supervised loss",
        "nats per token",
        "Cross-entropy of the answer tokens.",
        ROLE_COLOURS["actor"],
    ),
    PlainMetric(
        "ratio/clip_fraction",
        "Clipped tokens",
        "%",
        "Tokens whose policy ratio left the clip range; far above 20 % the step is too large.",
        scale=100.0,
    ),
    PlainMetric(
        "entropy/mean",
        "Entropy",
        "nats per token",
        "How undecided the policy is; a fall to zero ends exploration.",
    ),
    PlainMetric(
        "response_tokens/mean",
        "Response length",
        "tokens",
        "A steady climb can mean that length itself is rewarded.",
    ),
    PlainMetric(
        "response_tokens/finished",
        "Finished answers",
        "%",
        "Answers that ended by themselves; the others were cut at the length limit.",
        scale=100.0,
    ),
    PlainMetric("grad_norm", "Gradient norm", "", "Before clipping."),
    PlainMetric("learning_rate", "Learning rate", "", "As the schedule set it.", is_noisy=False),
)
