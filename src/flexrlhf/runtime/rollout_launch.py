"""From a config and its models to what generates, scores and values answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from flexrlhf.config.resolution import settled
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.learning.algorithms.kl import AdaptiveKL, FixedKL, KLController
from flexrlhf.learning.data.experience import Prompt
from flexrlhf.learning.data.order import SeededOrder
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.source import DTYPES
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.scoring.advantage import AdvantageSettings
from flexrlhf.runtime.generation import Generator, PromptDraw, end_tokens
from flexrlhf.runtime.reward_role import RewardRole, reward_functions
from flexrlhf.runtime.role_models import RoleModels
from flexrlhf.runtime.rollouts import Rollouts
from flexrlhf.runtime.speculation import speculation_of


def build_rollouts(
    config: RunConfig,
    spec: AlgorithmSpec,
    roles: RoleModels,
    prompts: Sequence[Prompt],
    *,
    score_tokens: int,
    context: Callable[[], AbstractContextManager[Any]],
) -> Rollouts:
    """Returns the rollouts of a run whose models are loaded.

    Args:
        config: a resolved run of an algorithm that generates.
        spec: its algorithm.
        roles: its models.
        prompts: what it trains on.
        score_tokens: token budget of a scoring chunk.
        context: makes the context that forward passes run in.
    """
    actor = roles.models["actor"]
    policy = pretrained(actor)
    dtype = next(actor.parameters()).dtype
    return Rollouts(
        draw=PromptDraw(
            prompts,
            SeededOrder(len(prompts), config.run.seed),
            config.training.prompts_per_iteration,
            config.rollout.samples_per_prompt,
        ),
        generator=Generator(
            build_engine(
                config.rollout.engine,
                policy,
                max_sequences=settled(config.rollout.max_sequences),
                packs_weights=config.rollout.packed_weights,
                captures_steps=config.rollout.cuda_graphs,
                weights=config.rollout.weights,
                kept_prefix_tokens=config.rollout.kept_prefix_tokens,
                speculation=speculation_of(
                    config,
                    roles.tokenizer,
                    next(actor.parameters()).device,
                    lambda: roles.models["reference"],
                ),
            ),
            roles.tokenizer,
            dtype if dtype == DTYPES["float64"] else DTYPES["float32"],
        ),
        sampling=sampling_of(config, end_tokens(policy, roles.tokenizer)),
        reward=RewardRole(
            roles.models.get("reward"),
            config.reward.model_weight,
            reward_functions(config.reward),
            max_tokens=score_tokens,
            context=context,
        ),
        advantage=advantage_settings(config, spec),
        kl=kl_controller(config),
        models=roles.models,
        shares_trunk=spec.shares_trunk,
        num_micro_batches=config.rollout.micro_batches,
        score_tokens=score_tokens,
        context=context,
    )


def advantage_settings(config: RunConfig, spec: AlgorithmSpec) -> AdvantageSettings:
    """Returns how rewards become advantages in a run."""
    algorithm = config.algorithm
    return AdvantageSettings(
        estimator="group" if spec.has_groups else "gae",
        gamma=algorithm.gamma,
        gae_lambda=algorithm.gae_lambda,
        whiten=algorithm.whiten_advantages,
        epsilon=settled(algorithm.advantage_epsilon),
        scale_by_std=algorithm.scale_by_std,
        kl_in_reward=algorithm.kl_placement == "reward",
        kl_estimator=settled(algorithm.kl_estimator),
    )


def sampling_of(config: RunConfig, ends: tuple[int, ...]) -> Sampling:
    """Returns how answers are drawn; `ends` are the tokens that end one."""
    rollout = config.rollout
    return Sampling(
        max_new_tokens=rollout.max_new_tokens,
        temperature=rollout.temperature,
        top_k=rollout.top_k,
        top_p=rollout.top_p,
        min_new_tokens=rollout.min_new_tokens,
        seed=config.run.seed,
        end_tokens=ends,
    )


def kl_controller(config: RunConfig) -> KLController:
    """Returns what sets the coefficient of the KL term."""
    algorithm = config.algorithm
    coefficient = settled(algorithm.kl_coef)
    if algorithm.kl_target is None:
        return FixedKL(coefficient)
    return AdaptiveKL(coefficient, algorithm.kl_target, algorithm.kl_horizon)
