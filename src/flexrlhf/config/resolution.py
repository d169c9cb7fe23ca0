"""What `auto` stands for where no measurement is needed, and what follows from the config.

`training.micro_batch_tokens` and `training.threads` stay `auto` in `resolve`: a trial step and the
machine decide them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from flexrlhf.config.algorithm import Algorithm
from flexrlhf.config.data import Data
from flexrlhf.config.model import RoleModel
from flexrlhf.config.placement import Placement
from flexrlhf.config.rollout import Rollout
from flexrlhf.config.schema import RunConfig, Sections
from flexrlhf.config.training import Training
from flexrlhf.config.weights import Weights
from flexrlhf.core.algorithm_specs import AlgorithmSpec, algorithm_spec
from flexrlhf.core.names import ImportanceName, Role

_KL_IN_REWARD: Final = ("ppo", "rloo", "reinforce_pp")
_WITHOUT_KL: Final = ("dapo", "dr_grpo")
"""Algorithms whose papers leave the KL term out: arXiv 2503.14476, 2503.20783."""

T = TypeVar("T")
C = TypeVar("C", bound=Sections)


@dataclass(frozen=True, slots=True)
class RoleOrigin:
    """Where a role's first weights come from."""

    role: Role
    """The role under which the config gives the model, which also seeds fresh weights."""
    model: RoleModel


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """How many samples an iteration and its parts have."""

    samples_per_iteration: int
    """Answers; rows for sft, pairs for reward_model, dpo and ipo."""
    mini_batch_samples: int
    """Samples per optimiser step."""
    epochs: int
    """Passes over an iteration's samples."""
    iterations: int

    @property
    def num_mini_batches(self) -> int:
        """Mini-batches of an epoch."""
        return self.samples_per_iteration // self.mini_batch_samples

    @property
    def steps_per_iteration(self) -> int:
        """Optimiser steps, all epochs together."""
        return self.epochs * self.num_mini_batches

    @property
    def num_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.iterations * self.steps_per_iteration


def settled(value: T | Literal["auto"]) -> T:
    """Returns a value that is no longer `auto`; one that still is would be our mistake."""
    assert value != "auto", "the config was not resolved"
    return value  # pyright: ignore[reportReturnType]  # `auto` is ruled out above


def spec_of(config: Sections) -> AlgorithmSpec:
    """Returns the spec of a config's algorithm.

    The reference takes part if KL costs something, and also if it is named: KL is then measured.
    The actor scores its answers unless the one step of an iteration is made with the weights that
    gave them, and no reward depends on its log-probs.

    Raises:
        ConfigError: the algorithm has no critic to share a trunk with.
    """
    algorithm, models = config.algorithm, config.model
    uses_reference = _kl_coef(algorithm) > 0 or models.reference is not None
    return algorithm_spec(
        algorithm.name,
        share_actor_critic=algorithm.share_actor_critic,
        uses_reference=uses_reference,
        has_reward_model=models.reward is not None,
        scores_actor=not _is_on_policy(config)
        or (uses_reference and _kl_placement(algorithm) == "reward"),
        generated_groups=None if (groups := config.rollout.generated_groups) == "auto" else groups,
    )


def _is_on_policy(config: Sections) -> bool:
    """Says whether an iteration trains once, on answers of the weights that it changes."""
    if config.algorithm.name == "ppo" or config.weights.max_staleness > 0:
        return False
    samples = config.training.prompts_per_iteration * config.rollout.samples_per_prompt
    mini_batch = config.training.mini_batch_samples
    return config.algorithm.epochs == 1 and mini_batch in ("auto", samples)


def placement_of(config: Sections) -> Placement:
    """Returns the section `placement`, with its defaults where the config says `auto`."""
    return Placement() if config.placement == "auto" else config.placement


def role_origin(config: Sections, role: Role) -> RoleOrigin | None:
    """Returns where a role's first weights come from, None for a reward that functions give.

    A reference that is not given is the initial actor; a critic starts from the reward model if
    there is one, else from the actor.
    """
    models = config.model
    substitutes: dict[Role, tuple[Role, ...]] = {
        "actor": ("actor",),
        "critic": ("critic", "reward", "actor"),
        "reference": ("reference", "actor"),
        "reward": ("reward",),
    }
    given: dict[Role, RoleModel | None] = {
        "actor": models.actor,
        "critic": models.critic,
        "reference": models.reference,
        "reward": models.reward,
    }
    for candidate in substitutes[role]:
        model = given[candidate]
        if model is not None:
            return RoleOrigin(candidate, model)
    return None


def samples_per_iteration(config: Sections) -> int:
    """Returns the samples of an iteration: answers, or rows where nothing is generated."""
    answers = config.rollout.samples_per_prompt if spec_of(config).generates else 1
    return config.training.prompts_per_iteration * answers


def batch_sizes(config: Sections) -> BatchSizes:
    """Returns the batch sizes that follow from a config."""
    samples = samples_per_iteration(config)
    given = config.training.mini_batch_samples
    return BatchSizes(
        samples,
        samples if given == "auto" else given,
        config.algorithm.epochs,
        config.training.iterations,
    )


def resolve(config: RunConfig) -> RunConfig:
    """Returns the config with every `auto` written out that needs no measurement."""
    return _resolve_sections(config).model_copy(
        update={"stages": tuple(_resolve_sections(stage) for stage in config.stages)}
    )


def with_threads(config: RunConfig, threads: int) -> RunConfig:
    """Returns the config with `threads` where `training.threads` is `auto`."""
    return _with_threads(config, threads).model_copy(
        update={"stages": tuple(_with_threads(stage, threads) for stage in config.stages)}
    )


def _with_threads(config: C, threads: int) -> C:
    if config.training.threads != "auto":
        return config
    training = config.training.model_copy(update={"threads": threads})
    return config.model_copy(update={"training": training})


def _resolve_sections(config: C) -> C:
    return config.model_copy(
        update={
            "algorithm": resolved_algorithm(config.algorithm).model_copy(
                update={"importance": _importance(config)}
            ),
            "data": _resolved_data(config.data),
            "rollout": _resolved_rollout(config),
            "training": _resolved_training(config),
            "weights": _resolved_weights(config.weights),
        }
    )


def resolved_algorithm(algorithm: Algorithm) -> Algorithm:
    """Returns the section `algorithm` with every `auto` written out."""
    has_groups = algorithm_spec(algorithm.name).has_groups
    placement = _kl_placement(algorithm)
    return algorithm.model_copy(
        update={
            "kl_coef": _kl_coef(algorithm),
            "kl_placement": placement,
            "kl_estimator": _or(algorithm.kl_estimator, "k3" if placement == "loss" else "k1"),
            "advantage_epsilon": _or(algorithm.advantage_epsilon, 1e-4 if has_groups else 1e-8),
            "clip_high": _or(algorithm.clip_high, algorithm.clip),
            "loss_aggregation": _or(algorithm.loss_aggregation, "token_mean"),
            "loss_type": _or(algorithm.loss_type, "ipo" if algorithm.name == "ipo" else "sigmoid"),
        }
    )


def _kl_placement(algorithm: Algorithm) -> Literal["reward", "loss"]:
    return _or(algorithm.kl_placement, "reward" if algorithm.name in _KL_IN_REWARD else "loss")


def _kl_coef(algorithm: Algorithm) -> float:
    return _or(algorithm.kl_coef, 0.0 if algorithm.name in _WITHOUT_KL else 0.05)


def _importance(config: Sections) -> ImportanceName:
    quantises = spec_of(config).generates and config.rollout.weights == "int8"
    return _or(config.algorithm.importance, "token" if quantises else "none")


def _resolved_rollout(config: Sections) -> Rollout:
    rollout, prompts = config.rollout, config.training.prompts_per_iteration
    largest_part = -(-prompts // rollout.micro_batches) * rollout.samples_per_prompt
    gap = 5.0 if rollout.weights == "int8" else 1e-4
    if config.training.precision == "bfloat16":
        gap = 2e-2
    return rollout.model_copy(
        update={
            "max_sequences": _or(rollout.max_sequences, largest_part),
            "speculative_acceptance": _or(
                rollout.speculative_acceptance, 0.3 if rollout.draft_model is None else 0.6
            ),
            "gap_alarm": _or(rollout.gap_alarm, gap),
            "generated_groups": spec_of(config).generated_groups,
            "mean_new_tokens": _or(rollout.mean_new_tokens, float(rollout.max_new_tokens)),
        }
    )


def _resolved_weights(weights: Weights) -> Weights:
    """Without staleness weights can only be new in every iteration."""
    if weights.max_staleness > 0:
        return weights
    return weights.model_copy(update={"sync_every": _or(weights.sync_every, 1)})


def _resolved_data(data: Data) -> Data:
    mean = _or(data.mean_prompt_tokens, float(data.max_prompt_tokens))
    return data.model_copy(update={"mean_prompt_tokens": mean})


def _resolved_training(config: Sections) -> Training:
    training = config.training
    imitates = config.algorithm.name in ("sft", "reward_model")
    return training.model_copy(
        update={
            "mini_batch_samples": batch_sizes(config).mini_batch_samples,
            "learning_rate": _or(training.learning_rate, 1e-5 if imitates else 1e-6),
        }
    )


def _or(value: T | Literal["auto"], default: T) -> T:
    return default if value == "auto" else value  # pyright: ignore[reportReturnType]
