"""From a checked config to a worker group that holds everything a run needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from flexrlhf.config.resolution import batch_sizes, settled, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role
from flexrlhf.learning.algorithms.kl import AdaptiveKL, FixedKL, KLController
from flexrlhf.learning.data.collation import item_tokens
from flexrlhf.learning.data.order import SeededOrder
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.source import DTYPES
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.scoring.advantage import AdvantageSettings
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.optimizer import OptimizerSettings
from flexrlhf.learning.training.step import RoleTrainer
from flexrlhf.planning.workflow.iteration import IterationShape
from flexrlhf.runtime.datasets import RunData
from flexrlhf.runtime.evaluation import Evaluation, answer_evaluation, loss_evaluation
from flexrlhf.runtime.generation import Generator, PromptDraw, end_tokens
from flexrlhf.runtime.mini_batches import MicroBatchLimit
from flexrlhf.runtime.objectives import objective_of
from flexrlhf.runtime.reward_role import RewardRole, reward_functions
from flexrlhf.runtime.role_models import RoleModels, load_roles
from flexrlhf.runtime.trial_step import measured_micro_batch_tokens
from flexrlhf.runtime.worker import PolicyWork, Worker, WorkSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launched:
    """A worker ready for its first task, and what the loop must know of it."""

    worker: Worker
    config: RunConfig
    """With every `auto` replaced by its value."""
    spec: AlgorithmSpec
    shape: IterationShape
    tokenizer: PreTrainedTokenizerBase


def launch(config: RunConfig, data: RunData) -> Launched:
    """Loads the models of a resolved run and puts them on this machine's device.

    Raises:
        ConfigError: a model, reward or limit is wrong; nothing was trained.
    """
    spec = spec_of(config)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    longest = longest_sequence(config, spec, data)
    roles = load_roles(config, spec, device, longest=longest)
    trainers = _trainers(config, spec, roles.models)
    item = 2 * longest if spec.data == "preferences" else longest
    config = _with_measured_budget(config, spec, trainers, item)
    limit = MicroBatchLimit(
        max_tokens=None
        if config.training.micro_batch_samples is not None
        else settled(config.training.micro_batch_tokens),
        max_items=config.training.micro_batch_samples,
    )
    settings = _work_settings(config, limit, item)
    policy = (
        _policy_work(
            config, spec, roles, data, settings, context=trainers[spec.trained[0]].backend.autocast
        )
        if spec.generates
        else None
    )
    worker = Worker(
        spec,
        settings,
        roles.models,
        trainers,
        rows=None if spec.generates else _row_draw(config, data.training),
        policy=policy,
        evaluation=_evaluation(config, spec, trainers, data, policy),
    )
    return Launched(worker, config, spec, _shape(config, spec, limit, item), roles.tokenizer)


def longest_sequence(config: RunConfig, spec: AlgorithmSpec, data: RunData) -> int:
    """Returns the tokens of the longest sequence that this run's rows can lead to."""
    rows = [*data.training, *data.evaluation]
    if spec.generates:
        return max(len(prompt.tokens) for prompt in rows) + config.rollout.max_new_tokens
    per_row = 2 if spec.data == "preferences" else 1
    return max(item_tokens(row) for row in rows) // per_row


def _trainers(
    config: RunConfig, spec: AlgorithmSpec, models: Mapping[Role, nn.Module]
) -> dict[Role, RoleTrainer]:
    training = config.training
    rates = {"critic": training.critic_learning_rate}
    return {
        role: RoleTrainer(
            role,
            OneDeviceBackend(
                models[role],
                OptimizerSettings(
                    learning_rate=rates.get(role, settled(training.learning_rate)),
                    total_steps=batch_sizes(config).num_steps,
                    schedule=training.schedule,
                    warmup_steps=training.warmup_steps,
                    weight_decay=training.weight_decay,
                    betas=training.betas,
                    epsilon=training.epsilon,
                    max_grad_norm=training.max_grad_norm,
                ),
                precision=training.precision,
            ),
            objective_of(role, config, spec),
        )
        for role in spec.trained
    }


def _with_measured_budget(
    config: RunConfig, spec: AlgorithmSpec, trainers: Mapping[Role, RoleTrainer], longest: int
) -> RunConfig:
    training = config.training
    if training.micro_batch_samples is not None or training.micro_batch_tokens != "auto":
        return config
    tokens = measured_micro_batch_tokens(
        list(trainers.values()),
        longest=longest,
        rows_per_item=2 if spec.data == "preferences" else 1,
        num_items=batch_sizes(config).mini_batch_samples,
    )
    logger.info("training.micro_batch_tokens = %d, found by a dry step", tokens)
    measured = training.model_copy(update={"micro_batch_tokens": tokens})
    return config.model_copy(update={"training": measured})


def _work_settings(config: RunConfig, limit: MicroBatchLimit, longest: int) -> WorkSettings:
    sizes = batch_sizes(config)
    return WorkSettings(
        seed=config.run.seed,
        num_mini_batches=sizes.samples_per_iteration // sizes.mini_batch_samples,
        rollout_micro_batches=config.rollout.micro_batches,
        limit=limit,
        score_tokens=limit.max_tokens or (limit.max_items or 1) * longest,
        max_answer_tokens=config.rollout.max_new_tokens,
    )


def _shape(
    config: RunConfig, spec: AlgorithmSpec, limit: MicroBatchLimit, longest: int
) -> IterationShape:
    sizes = batch_sizes(config)
    return IterationShape(
        num_samples=sizes.samples_per_iteration,
        rollout_micro_batches=config.rollout.micro_batches if spec.generates else 1,
        mini_batches=sizes.samples_per_iteration // sizes.mini_batch_samples,
        micro_batches_per_mini_batch=limit.bound(sizes.mini_batch_samples, longest),
        epochs=config.algorithm.epochs,
        sync_every=config.weights.sync_every,
        max_staleness=config.weights.max_staleness,
    )


def _row_draw(config: RunConfig, rows: Sequence[Any]) -> Callable[[int], list[Any]]:
    order = SeededOrder(len(rows), config.run.seed)
    count = config.training.prompts_per_iteration

    def draw(iteration: int) -> list[Any]:
        """Returns the rows of an iteration, in the order of their draw."""
        return [rows[index] for index in order.take(iteration * count, count)]

    return draw


def _policy_work(
    config: RunConfig,
    spec: AlgorithmSpec,
    roles: RoleModels,
    data: RunData,
    settings: WorkSettings,
    *,
    context: Callable[[], AbstractContextManager[Any]],
) -> PolicyWork:
    actor = roles.models["actor"]
    policy = pretrained(actor)
    engine = build_engine(
        config.rollout.engine,
        policy,
        max_sequences=settled(config.rollout.max_sequences),
    )
    dtype = next(actor.parameters()).dtype
    algorithm = config.algorithm
    return PolicyWork(
        draw=PromptDraw(
            data.training,
            SeededOrder(len(data.training), config.run.seed),
            config.training.prompts_per_iteration,
            config.rollout.samples_per_prompt,
        ),
        generator=Generator(
            engine, roles.tokenizer, dtype if dtype == DTYPES["float64"] else DTYPES["float32"]
        ),
        sampling=_sampling(config, end_tokens(policy, roles.tokenizer)),
        reward=RewardRole(
            roles.models.get("reward"),
            config.reward.model_weight,
            reward_functions(config.reward),
            max_tokens=settings.score_tokens,
            context=context,
        ),
        advantage=AdvantageSettings(
            estimator="group" if spec.has_groups else "gae",
            gamma=algorithm.gamma,
            gae_lambda=algorithm.gae_lambda,
            whiten=algorithm.whiten_advantages,
            epsilon=settled(algorithm.advantage_epsilon),
            scale_by_std=algorithm.scale_by_std,
            kl_in_reward=algorithm.kl_placement == "reward",
            kl_estimator=settled(algorithm.kl_estimator),
        ),
        kl=_kl_controller(config),
    )


def _sampling(config: RunConfig, ends: tuple[int, ...]) -> Sampling:
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


def _kl_controller(config: RunConfig) -> KLController:
    algorithm = config.algorithm
    if algorithm.kl_target is None:
        return FixedKL(algorithm.kl_coef)
    return AdaptiveKL(algorithm.kl_coef, algorithm.kl_target, algorithm.kl_horizon)


def _evaluation(
    config: RunConfig,
    spec: AlgorithmSpec,
    trainers: Mapping[Role, RoleTrainer],
    data: RunData,
    policy: PolicyWork | None,
) -> Evaluation | None:
    section = config.data.evaluation
    if section is None:
        return None
    if policy is not None:
        run = answer_evaluation(
            policy.generator,
            policy.reward,
            data.evaluation,
            section.samples_per_prompt,
            replace(policy.sampling, greedy=section.greedy),
            context=trainers["actor"].backend.autocast,
        )
    else:
        run = loss_evaluation(spec.data, trainers[spec.trained[0]], data.evaluation)
    return Evaluation(section.every, config.training.iterations, run)
