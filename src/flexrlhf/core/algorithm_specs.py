"""What each algorithm needs: roles, stages, data and groups.

A spec is a plain value. `planning.workflow` makes the task graph of an iteration from it, the
config is checked against it, and nothing here knows a tensor or a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from flexrlhf.core.errors import ConfigError
from flexrlhf.core.names import ALGORITHMS, AlgorithmName, Role

DataKind = Literal["prompts", "preferences", "supervised"]
ScoreOperation = Literal["logprobs", "values", "rewards"]


@dataclass(frozen=True, slots=True)
class ScoreStep:
    """One independent scoring pass over given tokens."""

    role: Role
    operation: ScoreOperation


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """What one iteration of an algorithm consists of."""

    name: AlgorithmName
    data: DataKind
    """The kind of data set that the iteration reads."""
    trained: tuple[Role, ...]
    """Roles with an optimiser, in the order in which one device trains them."""
    scored: tuple[ScoreStep, ...] = ()
    """Scoring passes; none depends on another."""
    generates: bool = False
    has_groups: bool = False
    """Advantages compare the answers to one prompt, so `samples_per_prompt` must be at least 2."""
    shares_trunk: bool = False
    """Actor and critic are one trunk with two heads; `critic` is then no role of its own."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Every role that holds a model or a function, trained ones first."""
        roles: list[Role] = [*self.trained, *(step.role for step in self.scored)]
        return tuple(dict.fromkeys(roles))


_BUILT: Final[tuple[AlgorithmName, ...]] = ("ppo", "grpo", "sft", "reward_model")


def algorithm_spec(
    name: str, *, share_actor_critic: bool = False, uses_reference: bool = True
) -> AlgorithmSpec:
    """Returns the spec of algorithm `name`.

    Args:
        name: one of `core.names.ALGORITHMS`.
        share_actor_critic: PPO only: one trunk with a language-model head and a value head.
        uses_reference: False when no KL term asks for the reference model.

    Raises:
        ConfigError: the name is unknown or not built yet, or the options contradict it.
    """
    if name not in _BUILT:
        known = name in ALGORITHMS
        raise ConfigError(
            f"algorithm.name = {name!r} is {'planned but not built yet' if known else 'unknown'}.",
            f"Built: {', '.join(_BUILT)}.",
            "Choose one of these.",
        )
    if share_actor_critic and name != "ppo":
        raise ConfigError(
            f"algorithm.share_actor_critic = true, but {name!r} has no critic.",
            "Only ppo has actor and critic to share a trunk.",
            "Remove the key.",
        )
    if name == "sft":
        return AlgorithmSpec("sft", data="supervised", trained=("actor",))
    if name == "reward_model":
        return AlgorithmSpec("reward_model", data="preferences", trained=("reward",))
    reference = (ScoreStep("reference", "logprobs"),) if uses_reference else ()
    if name == "grpo":
        return AlgorithmSpec(
            "grpo",
            data="prompts",
            trained=("actor",),
            scored=(ScoreStep("actor", "logprobs"), *reference, ScoreStep("reward", "rewards")),
            generates=True,
            has_groups=True,
        )
    values = () if share_actor_critic else (ScoreStep("critic", "values"),)
    return AlgorithmSpec(
        "ppo",
        data="prompts",
        trained=("actor",) if share_actor_critic else ("actor", "critic"),
        scored=(
            ScoreStep("actor", "logprobs"),
            *values,
            *reference,
            ScoreStep("reward", "rewards"),
        ),
        generates=True,
        shares_trunk=share_actor_critic,
    )
