"""What each algorithm needs: roles, stages, data and groups.

A spec is a plain value. `planning.workflow` makes the task graph of an iteration from it, the
config is checked against it, and nothing here knows a tensor or a device. All algorithms can be
planned; those in `BUILT` can also be trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from flexrlhf.core.errors import ConfigError, nearest
from flexrlhf.core.names import ALGORITHMS, AlgorithmName, Role

DataKind = Literal["prompts", "preferences", "supervised"]
ScoreOperation = Literal["logprobs", "values", "rewards"]

BUILT: Final[tuple[AlgorithmName, ...]] = ("ppo", "grpo", "dpo", "ipo", "sft", "reward_model")
"""Algorithms that can be trained."""


@dataclass(frozen=True, slots=True)
class ScoreStep:
    """One independent scoring pass over given tokens."""

    role: Role
    """A label tells several models of one role apart: `names.labelled`."""
    operation: ScoreOperation
    is_mismatched: bool = False
    """Over the same prompts, each with the answer that belongs to another."""


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """What one iteration of an algorithm consists of."""

    name: AlgorithmName
    data: DataKind
    """The kind of data set that the iteration reads."""
    trained: tuple[Role, ...]
    """Roles with an optimiser, in the order in which one device trains them."""
    scored: tuple[ScoreStep, ...] = ()
    """Scoring passes over answers, or over given examples; none depends on another."""
    generates: bool = False
    has_groups: bool = False
    """Advantages compare the answers to one prompt, so `samples_per_prompt` must be at least 2."""
    shares_trunk: bool = False
    """Actor and critic are one trunk with two heads; `critic` is then no role of its own."""
    functions: tuple[Role, ...] = ()
    """Scored roles that are no model but functions, which need no accelerator."""
    generated_groups: float = 1.0
    """Groups of answers generated and rewarded for each that is trained on. More than 1 where those
    that teach nothing, since all their rewards are equal, are dropped and replaced: an expectation,
    since how many there are depends on model and prompts."""

    @property
    def trains_with_mismatched(self) -> bool:
        """Whether each training pass needs another forward pass, over mismatched answers."""
        return any(step.is_mismatched for step in self.scored)

    @property
    def scores_actor(self) -> bool:
        """Whether the trained policy first says how likely the answers were."""
        return any(step.role == "actor" for step in self.scored)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Every role that holds a model or a function, trained ones first."""
        roles: list[Role] = [*self.trained, *(step.role for step in self.scored)]
        return tuple(dict.fromkeys(roles))

    @property
    def models(self) -> tuple[Role, ...]:
        """Every role that holds a model, trained ones first."""
        return tuple(role for role in self.roles if role not in self.functions)

    @property
    def frozen(self) -> tuple[Role, ...]:
        """The models that score and are not trained."""
        return tuple(role for role in self.models if role not in self.trained)


_WITH_GROUPS: Final[tuple[AlgorithmName, ...]] = (
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_pp_baseline",
    "gspo",
    "dapo",
)
_FROM_PREFERENCES: Final[tuple[AlgorithmName, ...]] = ("dpo", "ipo", "kto")
"""Algorithms that hold the actor to a frozen reference, both looking at given answers. kto takes
the pairs apart: a chosen answer is wanted, a rejected one is not."""
_WITH_MISMATCHED: Final[tuple[AlgorithmName, ...]] = ("kto",)
"""Algorithms that estimate KL(policy, reference) on answers given to other prompts, by a pass of
both models that has no gradient. Source: Ethayarajh et al., arXiv 2402.01306, section 4.1."""
_RESAMPLED: Final[Mapping[AlgorithmName, float]] = {"dapo": 3.0}
"""Groups generated for each that is trained on. Source: dynamic sampling, arXiv 2503.14476, section
3.2; its authors' script (`gen_prompt_bsz=$((train_prompt_bsz * 3))`) and NeMo-RL's
(`batch_multiplier: 3`) generate three times what they train on."""


def algorithm_spec(
    name: str,
    *,
    share_actor_critic: bool = False,
    uses_reference: bool = True,
    has_reward_model: bool = True,
    scores_actor: bool = True,
    generated_groups: float | None = None,
) -> AlgorithmSpec:
    """Returns the spec of algorithm `name`.

    Args:
        name: one of `core.names.ALGORITHMS`.
        share_actor_critic: PPO only: one trunk with a language-model head and a value head.
        uses_reference: False when no KL term asks for the reference model. What learns from
            preferences has one in any case.
        has_reward_model: False when functions alone score the answers.
        scores_actor: False when the one pass that trains on answers says how likely they were, as
            nothing asks for it before and their weights are still the same.
        generated_groups: Groups generated for each that is trained on; None is what is usual.

    Raises:
        ConfigError: the name is unknown, or the options contradict it.
    """
    if name not in ALGORITHMS:
        raise ConfigError(
            f"algorithm.name = {name!r} is unknown. {nearest(name, ALGORITHMS)}".rstrip(),
            f"Known: {', '.join(ALGORITHMS)}.",
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
    reference = ScoreStep("reference", "logprobs")
    if name in _FROM_PREFERENCES:
        mismatched = ScoreStep("reference", "logprobs", is_mismatched=True)
        scored = (reference, mismatched) if name in _WITH_MISMATCHED else (reference,)
        return AlgorithmSpec(name, data="preferences", trained=("actor",), scored=scored)
    has_critic = name == "ppo" and not share_actor_critic
    return AlgorithmSpec(
        name,
        data="prompts",
        trained=("actor", "critic") if has_critic else ("actor",),
        scored=(
            *((ScoreStep("actor", "logprobs"),) if scores_actor else ()),
            *((ScoreStep("critic", "values"),) if has_critic else ()),
            *((reference,) if uses_reference else ()),
            ScoreStep("reward", "rewards"),
        ),
        generates=True,
        has_groups=name in _WITH_GROUPS,
        shares_trunk=share_actor_critic,
        functions=() if has_reward_model else ("reward",),
        generated_groups=generated_groups or _RESAMPLED.get(name, 1.0),
    )
