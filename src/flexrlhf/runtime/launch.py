"""From a checked config to a worker group that holds everything a run needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from flexrlhf.config.resolution import batch_sizes, settled, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.clock import Clock
from flexrlhf.core.names import Role
from flexrlhf.learning.data.collation import item_tokens
from flexrlhf.learning.data.order import SeededOrder
from flexrlhf.learning.training.one_device import OneDeviceBackend
from flexrlhf.learning.training.step import RoleTrainer
from flexrlhf.planning.workflow.iteration import IterationShape
from flexrlhf.runtime.datasets import RunData
from flexrlhf.runtime.evaluation import EvaluationResult, answer_evaluation, loss_evaluation
from flexrlhf.runtime.in_process import InProcessWorkers
from flexrlhf.runtime.item_source import ItemSource, RowDraw, RowSource
from flexrlhf.runtime.micro_batch_limit import ItemLimit, MicroBatchLimit, TokenLimit
from flexrlhf.runtime.mini_batch_steps import MiniBatchSteps, StepSettings
from flexrlhf.runtime.objectives import objective_of
from flexrlhf.runtime.optimizer_settings import optimizer_settings
from flexrlhf.runtime.role_models import RoleModels, load_roles
from flexrlhf.runtime.rollout_launch import build_rollouts
from flexrlhf.runtime.rollouts import Rollouts
from flexrlhf.runtime.scored_pairs import PairScorer, ScoredPairs
from flexrlhf.runtime.trial_step import measured_micro_batch_tokens
from flexrlhf.runtime.worker import Worker
from flexrlhf.runtime.workers import Workers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launched:
    """A worker of this process, ready for its first task, and what the loop must know of it."""

    worker: Worker
    config: RunConfig
    """With every `auto` replaced by its value."""
    spec: AlgorithmSpec
    shape: IterationShape

    def connect(self, clock: Clock) -> Workers:
        """Takes the worker into use, with a clock for its spans."""
        return InProcessWorkers({"main": self.worker}, clock)


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
    limit = _limit(config)
    context = trainers[spec.trained[0]].backend.autocast
    source = _source(config, spec, roles, data, score_tokens=limit.tokens(item), context=context)
    worker = Worker(
        roles.models,
        trainers,
        source,
        MiniBatchSteps(spec.data, _step_settings(config, limit), trainers, source),
        tokenizer=roles.tokenizer,
        evaluate=_evaluation(config, spec, trainers, data, source),
    )
    return Launched(worker, config, spec, _shape(config, spec, limit, item))


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
    return {
        role: RoleTrainer(
            role,
            OneDeviceBackend(
                models[role],
                optimizer_settings(role, config),
                precision=config.training.precision,
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


def _limit(config: RunConfig) -> MicroBatchLimit:
    training = config.training
    if training.micro_batch_samples is not None:
        return ItemLimit(training.micro_batch_samples)
    return TokenLimit(settled(training.micro_batch_tokens))


def _step_settings(config: RunConfig, limit: MicroBatchLimit) -> StepSettings:
    return StepSettings(
        seed=config.run.seed,
        num_mini_batches=batch_sizes(config).num_mini_batches,
        limit=limit,
        max_answer_tokens=config.rollout.max_new_tokens,
    )


def _shape(
    config: RunConfig, spec: AlgorithmSpec, limit: MicroBatchLimit, longest: int
) -> IterationShape:
    sizes = batch_sizes(config)
    return IterationShape(
        num_samples=sizes.samples_per_iteration,
        rollout_micro_batches=config.rollout.micro_batches if spec.generates else 1,
        mini_batches=sizes.num_mini_batches,
        micro_batches_per_mini_batch=limit.bound(sizes.mini_batch_samples, longest),
        epochs=config.algorithm.epochs,
        sync_every=settled(config.weights.sync_every),
        max_staleness=config.weights.max_staleness,
    )


def _source(
    config: RunConfig,
    spec: AlgorithmSpec,
    roles: RoleModels,
    data: RunData,
    *,
    score_tokens: int,
    context: Callable[[], AbstractContextManager[Any]],
) -> ItemSource:
    rows = data.training
    if spec.generates:
        return build_rollouts(config, spec, roles, rows, score_tokens=score_tokens, context=context)
    order = SeededOrder(len(rows), config.run.seed)
    draw = RowDraw(rows, order, config.training.prompts_per_iteration)
    if not spec.scored:
        return RowSource(draw)
    scorer = PairScorer(score_tokens, context)
    return ScoredPairs(draw, data.evaluation, roles.models["reference"], scorer)


def _evaluation(
    config: RunConfig,
    spec: AlgorithmSpec,
    trainers: Mapping[Role, RoleTrainer],
    data: RunData,
    source: ItemSource,
) -> Callable[[], EvaluationResult] | None:
    section = config.data.evaluation
    if section is None:
        return None
    if isinstance(source, Rollouts):
        return answer_evaluation(
            source.generator,
            source.reward,
            data.evaluation,
            section.samples_per_prompt,
            replace(source.sampling, greedy=section.greedy),
            context=source.context,
        )
    trainer = trainers[spec.trained[0]]
    if isinstance(source, ScoredPairs):
        return loss_evaluation(spec.data, trainer, lambda: source.held_out)
    return loss_evaluation(spec.data, trainer, lambda: data.evaluation)
