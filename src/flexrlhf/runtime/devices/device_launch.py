"""Puts together what one worker is made of, from the run that it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from flexrlhf.learning.data.experience import Prompt
from flexrlhf.learning.data.order import SeededOrder
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.source import DTYPES
from flexrlhf.learning.training.precision import autocast
from flexrlhf.learning.transport.buffer import ExperienceBuffer
from flexrlhf.runtime.datasets import RunData, load_data
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.device_pairs import DevicePairs
from flexrlhf.runtime.devices.device_rollouts import DeviceRollouts, prompt_of
from flexrlhf.runtime.devices.exchange import Ask, ExperienceExchange
from flexrlhf.runtime.devices.held_roles import HeldRoles, hold_roles
from flexrlhf.runtime.devices.work_order import WorkOrder
from flexrlhf.runtime.evaluation import EvaluationResult, loss_evaluation
from flexrlhf.runtime.generation import Generator, PromptDraw, end_tokens
from flexrlhf.runtime.item_source import ItemSource, RowDraw, RowSource
from flexrlhf.runtime.mini_batch_steps import MiniBatchSteps, StepSettings
from flexrlhf.runtime.recover import seed_random_states
from flexrlhf.runtime.reward_role import RewardRole, reward_functions
from flexrlhf.runtime.role_models import RoleLoader
from flexrlhf.runtime.rollout_launch import advantage_settings, kl_controller, sampling_of
from flexrlhf.runtime.scored_pairs import PairScorer


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """What one worker is made of."""

    device: torch.device
    loader: RoleLoader
    held: HeldRoles
    source: ItemSource
    steps: MiniBatchSteps
    exchange: ExperienceExchange
    rollouts: DeviceRollouts | None
    """The source, where the algorithm generates."""
    pairs: DevicePairs | None
    """The source, where a frozen role scores pairs of a data set."""
    evaluate: Callable[[], EvaluationResult] | None
    """Looks at held-out rows, where the algorithm reads rows and this worker trains."""

    @property
    def shared(self) -> DeviceRollouts | DevicePairs | None:
        """The source, where workers take from each other what it makes."""
        return self.rollouts or self.pairs


def build_parts(
    order: WorkOrder, device_map: DeviceMap, rank: int, ask: Ask, device: torch.device
) -> DeviceParts:
    """Loads one worker's roles and rows; all workers of the run call it together.

    Args:
        order: the run.
        device_map: who holds what.
        rank: this worker.
        ask: asks another worker for a parcel.
        device: where models go.
    """
    config, spec = order.config, order.spec
    seed_random_states(config.run.seed)
    loader = RoleLoader(config, spec, longest=order.longest)
    rewards = reward_functions(config.reward) if spec.generates else ()
    data = load_data(config.data, spec.data, loader.tokenizer, rewards)
    held = hold_roles(config, spec, device_map, loader, device=device)
    draw = PromptDraw(
        data.training,
        SeededOrder(len(data.training), config.run.seed),
        config.training.prompts_per_iteration,
        config.rollout.samples_per_prompt,
    )
    exchange = ExperienceExchange(
        device_map,
        rank,
        ask,
        _prompts(order, draw, data),
        buffer=ExperienceBuffer(1 + order.shape.max_staleness, order.shape.num_samples),
        held_out=ExperienceBuffer(1, max(1, len(data.evaluation) * _answers_held_out(order))),
    )
    rollouts = None
    if spec.generates:
        rollouts = _rollouts(
            order,
            device_map,
            held,
            exchange,
            draw=draw,
            held_out=data.evaluation,
            loader=loader,
            device=device,
        )
    rows = RowDraw(
        data.training,
        SeededOrder(len(data.training), config.run.seed),
        config.training.prompts_per_iteration,
    )
    pairs = None
    if spec.scored and not spec.generates:
        pairs = DevicePairs(
            device_map,
            rank,
            ask,
            rows,
            data.evaluation,
            held.models.get("reference"),
            PairScorer(
                order.limit.tokens(2 * order.longest),
                partial(autocast, device.type, config.training.precision),
            ),
        )
    source: ItemSource = rollouts or pairs or RowSource(rows)
    settings = StepSettings(
        seed=config.run.seed,
        num_mini_batches=order.shape.mini_batches,
        limit=order.limit,
        max_answer_tokens=config.rollout.max_new_tokens,
        speeds={role: device_map.replica_speeds(role) for role in spec.trained},
    )
    steps = MiniBatchSteps(spec.data, settings, held.trainers, source)
    evaluate = None
    trainer = held.trainers.get(spec.trained[0])
    if not spec.generates and config.data.evaluation is not None and trainer is not None:
        evaluate = loss_evaluation(
            spec.data, trainer, lambda: pairs.held_out if pairs is not None else data.evaluation
        )
    return DeviceParts(device, loader, held, source, steps, exchange, rollouts, pairs, evaluate)


def _answers_held_out(order: WorkOrder) -> int:
    section = order.config.data.evaluation
    return section.samples_per_prompt if section is not None else 1


def _prompts(order: WorkOrder, draw: PromptDraw, data: RunData) -> Callable[[int], Prompt]:
    answers = _answers_held_out(order)
    return lambda sample_id: prompt_of(sample_id, draw, data.evaluation, answers)


def _rollouts(
    order: WorkOrder,
    device_map: DeviceMap,
    held: HeldRoles,
    exchange: ExperienceExchange,
    *,
    draw: PromptDraw,
    held_out: Sequence[Prompt],
    loader: RoleLoader,
    device: torch.device,
) -> DeviceRollouts:
    config, spec = order.config, order.spec
    score_tokens = order.limit.tokens(order.longest)
    context = partial(autocast, device.type, config.training.precision)
    sampling = sampling_of(config, _ends(held, device_map, loader))
    section = config.data.evaluation
    reward = None
    if exchange.rank in device_map.ranks("reward"):
        reward = RewardRole(
            held.models.get("reward"),
            config.reward.model_weight,
            reward_functions(config.reward),
            max_tokens=score_tokens,
            context=context,
        )
    return DeviceRollouts(
        spec=spec,
        device_map=device_map,
        held=held,
        exchange=exchange,
        draw=draw,
        held_out=held_out,
        held_out_sampling=replace(sampling, greedy=section is not None and section.greedy),
        held_out_answers=_answers_held_out(order),
        generator=_generator(held, loader),
        reward=reward,
        sampling=sampling,
        advantage=advantage_settings(config, spec),
        kl=kl_controller(config),
        num_micro_batches=order.shape.rollout_micro_batches,
        score_tokens=score_tokens,
        context=context,
    )


def _generator(held: HeldRoles, loader: RoleLoader) -> Generator | None:
    if held.engine is None:
        return None
    model = held.generating
    dtype = next(model.parameters()).dtype
    wide = DTYPES["float64"]
    return Generator(held.engine, loader.tokenizer, dtype if dtype == wide else DTYPES["float32"])


def _ends(held: HeldRoles, device_map: DeviceMap, loader: RoleLoader) -> tuple[int, ...]:
    """Returns the tokens that end an answer; only a worker with the policy generates."""
    role = device_map.generating
    if role not in held.models:
        return ()
    return end_tokens(pretrained(held.models[role].module), loader.tokenizer)
