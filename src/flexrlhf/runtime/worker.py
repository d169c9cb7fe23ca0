"""What one device does: carries out the tasks of a graph on the roles and samples that it holds.

A plain class: no process, no Ray, no scheduler. A task names its role, micro-batch and mini-batch;
the samples stay here, and only small reports go back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import CheckpointError, RunFailed, StaleWeights
from flexrlhf.core.names import Role
from flexrlhf.learning.algorithms.kl import KLController
from flexrlhf.learning.data.collation import COLLATE, Item, num_tokens
from flexrlhf.learning.data.experience import Sample
from flexrlhf.learning.models.atomic_folder import atomic_folder
from flexrlhf.learning.models.saving import write_model
from flexrlhf.learning.models.soundness import unusable_weight
from flexrlhf.learning.rollout.consistency import logprob_gap
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.scoring.advantage import AdvantageSettings, assign_advantages
from flexrlhf.learning.scoring.passes import score_logprobs, score_shared, score_values
from flexrlhf.learning.training.memory import peak_bytes, reset_peak
from flexrlhf.learning.training.step import RoleTrainer
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.runtime.evaluation import Evaluation
from flexrlhf.runtime.generation import Generator, PromptDraw
from flexrlhf.runtime.measurements import Measurement, Measurements, mean_and_std
from flexrlhf.runtime.mini_batches import MicroBatchLimit, MiniBatch, cut_mini_batch, permutation
from flexrlhf.runtime.reward_role import RewardRole
from flexrlhf.runtime.telemetry import RoleBytes


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """Plain numbers that every task of a run shares."""

    seed: int
    num_mini_batches: int
    rollout_micro_batches: int
    limit: MicroBatchLimit
    score_tokens: int
    """Token budget of a scoring chunk."""
    max_answer_tokens: int


@dataclass(slots=True)
class Holdings:
    """The samples or rows of the iteration in progress."""

    samples: dict[int, list[Sample]] = field(default_factory=dict[int, list[Sample]])
    """By generation micro-batch."""
    items: Sequence[Item] = ()
    """Everything that the iteration trains on, in id order, once the barrier has passed."""
    mini_batches: dict[tuple[int, int], MiniBatch] = field(
        default_factory=dict[tuple[int, int], MiniBatch]
    )
    """By epoch and number."""


@dataclass(slots=True)
class PolicyWork:
    """What only algorithms that generate have."""

    draw: PromptDraw
    generator: Generator
    sampling: Sampling
    reward: RewardRole
    advantage: AdvantageSettings
    kl: KLController


class Worker:
    """Holds roles of one device and runs tasks on them.

    Args:
        spec: the algorithm.
        settings: numbers of the run.
        models: every role's module.
        trainers: trained roles.
        rows: draws the rows of an iteration, where the algorithm trains on a data set directly.
        policy: generation, rewards and advantages, where the algorithm generates.
        evaluation: held-out rows, where the run has any.
    """

    def __init__(
        self,
        spec: AlgorithmSpec,
        settings: WorkSettings,
        models: Mapping[Role, nn.Module],
        trainers: Mapping[Role, RoleTrainer],
        *,
        rows: Callable[[int], Sequence[Item]] | None = None,
        policy: PolicyWork | None = None,
        evaluation: Evaluation | None = None,
    ) -> None:
        self.spec = spec
        self.settings = settings
        self.models = models
        self.trainers = trainers
        self.policy = policy
        self.evaluation = evaluation
        self._rows = rows
        self._held = Holdings()
        self._operations: Mapping[str, Callable[[Task], Measurements]] = {
            "generate": self._generate,
            "logprobs": self._logprobs,
            "values": self._values,
            "rewards": self._rewards,
            "advantage": self._advantage,
            "prepare": self._prepare,
            "forward_backward": self._forward_backward,
            "optimizer_step": self._optimizer_step,
            "install": self._install,
        }

    def run(self, task: Task) -> Measurements:
        """Carries out one task and returns what it measured."""
        return self._operations[task.operation](task)

    def first_samples(self, count: int) -> list[Sample]:
        """Returns the first answers of the iteration in progress."""
        return self.samples[:count]

    @property
    def samples(self) -> list[Sample]:
        """Samples of the iteration in progress, in id order."""
        everything = [s for part in self._held.samples.values() for s in part]
        return sorted(everything, key=lambda sample: sample.sample_id)

    def _policy(self) -> PolicyWork:
        assert self.policy is not None, "the graph of this algorithm has no generation"
        return self.policy

    def _generate(self, task: Task) -> Measurements:
        policy = self._policy()
        assert task.micro_batch is not None
        if policy.generator.engine.weight_version != task.weight_version:
            raise StaleWeights(
                f"The engine holds weights {policy.generator.engine.weight_version}, "
                f"task {task.name} needs {task.weight_version}.",
                "Weights are installed before the next generation.",
                "This is a fault of the program: please report it with the run folder's log.",
            )
        if task.micro_batch == 0:
            self._start_iteration()
        draws = policy.draw.micro_batch(
            task.iteration, task.micro_batch, self.settings.rollout_micro_batches
        )
        with self.forward_context("actor"):
            samples = policy.generator.answer(
                [(draw, policy.draw.prompt(draw)) for draw in draws],
                policy.draw.answers_per_prompt,
                policy.sampling,
            )
        self._held.samples[task.micro_batch] = samples
        lengths = [float(sample.num_response_tokens) for sample in samples]
        return {
            "response_tokens/mean": Measurement.mean_of(lengths),
            "response_tokens/finished": Measurement.mean_of([float(s.finished) for s in samples]),
        }

    def _logprobs(self, task: Task) -> Measurements:
        assert task.micro_batch is not None
        assert task.role is not None
        samples = self._held.samples[task.micro_batch]
        name = "old_logprobs" if task.role == "actor" else f"{task.role}_logprobs"
        arguments = {
            "temperature": self._policy().sampling.temperature,
            "max_tokens": self.settings.score_tokens,
        }
        model = self.models[task.role]
        with self.forward_context(task.role):
            if task.role == "actor" and self.spec.shares_trunk:
                columns = dict(
                    zip((name, "values"), score_shared(model, samples, **arguments), strict=True)
                )
            else:
                columns = {name: score_logprobs(model, samples, **arguments)}
        for field_name, values in columns.items():
            for sample, value in zip(samples, values, strict=True):
                sample.fields[field_name] = value
        return self._logprob_gap(samples) if task.role == "actor" else {}

    def _logprob_gap(self, samples: Sequence[Sample]) -> Measurements:
        """Returns the largest difference between the engine's log-probs and the trainer's."""
        gap = logprob_gap(
            (sample.fields["logprobs"] for sample in samples),
            (sample.fields["old_logprobs"] for sample in samples),
        )
        return {"logprob_gap/max": Measurement(gap, reduction="max")}

    def _values(self, task: Task) -> Measurements:
        assert task.micro_batch is not None
        samples = self._held.samples[task.micro_batch]
        with self.forward_context("critic"):
            values = score_values(
                self.models["critic"], samples, max_tokens=self.settings.score_tokens
            )
        for sample, value in zip(samples, values, strict=True):
            sample.fields["values"] = value
        return {}

    def _rewards(self, task: Task) -> Measurements:
        assert task.micro_batch is not None
        self._policy().reward.score(self._held.samples[task.micro_batch])
        return {}

    def _advantage(self, task: Task) -> Measurements:
        policy = self._policy()
        samples = self.samples
        statistics = assign_advantages(
            samples,
            [sample.sample_id // policy.draw.answers_per_prompt for sample in samples],
            policy.advantage,
            kl_coef=policy.kl.coefficient,
        )
        self._held.items = samples
        measured = mean_and_std("reward", [sample.reward for sample in samples])
        measured |= self._counts(samples)
        for part in dict.fromkeys(name for sample in samples for name in sample.reward_parts):
            measured[f"reward/{part}"] = Measurement.mean_of(
                [sample.reward_parts.get(part, math.nan) for sample in samples]
            )
        versions = [float(task.iteration - sample.weight_version) for sample in samples]
        measured["staleness/mean"] = Measurement.mean_of(versions)
        measured["staleness/max"] = Measurement(max(versions), reduction="max")
        if statistics.kl_per_token is not None and statistics.kl_per_answer is not None:
            measured["kl/mean"] = Measurement(statistics.kl_per_token)
            measured["kl/coefficient"] = Measurement(policy.kl.coefficient)
            policy.kl.update(statistics.kl_per_answer, len(samples))
        if statistics.num_groups:
            measured["groups/zero_variance"] = Measurement(
                statistics.num_zero_variance_groups / statistics.num_groups
            )
        return measured

    def _prepare(self, task: Task) -> Measurements:
        assert self._rows is not None
        self._start_iteration()
        self._held.items = self._rows(task.iteration)
        return self._counts(self._held.items)

    def _start_iteration(self) -> None:
        self._held = Holdings()
        reset_peak(self.device)

    @staticmethod
    def _counts(items: Sequence[Item]) -> Measurements:
        """Counts samples and the tokens that the loop handled, padding left out."""
        return {
            "samples": Measurement(len(items)),
            "tokens": Measurement(sum(num_tokens(item) for item in items)),
        }

    def _mini_batch(self, task: Task) -> MiniBatch:
        assert task.epoch is not None
        assert task.mini_batch is not None
        key = (task.epoch, task.mini_batch)
        if key not in self._held.mini_batches:
            order = permutation(
                len(self._held.items),
                seed=self.settings.seed,
                iteration=task.iteration,
                epoch=task.epoch,
            )
            self._held.mini_batches[key] = cut_mini_batch(
                self._held.items,
                order,
                task.mini_batch,
                self.settings.num_mini_batches,
                limit=self.settings.limit,
                max_answer_tokens=self.settings.max_answer_tokens,
            )
        return self._held.mini_batches[key]

    def _forward_backward(self, task: Task) -> Measurements:
        assert task.role is not None
        assert task.micro_batch is not None
        mini_batch = self._mini_batch(task)
        items = mini_batch.micro_batch(task.micro_batch)
        if items:
            trainer = self.trainers[task.role]
            batch = COLLATE[self.spec.data](items, trainer.objective.fields)
            trainer.accumulate(batch.to(self.device), mini_batch.counts)
        return {}

    def _optimizer_step(self, task: Task) -> Measurements:
        assert task.role is not None
        metrics = self.trainers[task.role].step(self._mini_batch(task).counts)
        return {name: Measurement(value) for name, value in metrics.items()}

    def _install(self, task: Task) -> Measurements:
        """Gives the engine the actor's new weights; they are shared, so only the version moves."""
        assert task.weight_version is not None
        self._policy().generator.engine.load_weights((), task.weight_version)
        return {"weights/version": Measurement(task.weight_version, reduction="max")}

    def forward_context(self, role: Role) -> AbstractContextManager[Any]:
        """Returns the autocast context of a role; frozen roles run as the trained ones do."""
        trainer = self.trainers.get(role) or next(iter(self.trainers.values()))
        return trainer.backend.autocast()

    @property
    def device(self) -> torch.device:
        """The device of this worker."""
        return next(next(iter(self.models.values())).parameters()).device

    def evaluate(self, iteration: int) -> tuple[Mapping[str, float], Sequence[Sample]]:
        """Returns metrics `eval/*` of the held-out rows and the answers, where due."""
        if self.evaluation is None or not self.evaluation.is_due(iteration):
            return {}, []
        return self.evaluation.run()

    def save(self, folder: Path) -> None:
        """Writes every trained role's shard into a folder of its own.

        Raises:
            RunFailed: the last step left a weight that nothing can be computed with.
        """
        for role, trainer in self.trainers.items():
            _refuse_unusable(role, trainer.backend.model)
            trainer.backend.save_shard(folder / role)

    def load(self, folder: Path) -> None:
        """Restores what `save` wrote."""
        for role, trainer in self.trainers.items():
            trainer.backend.load_shard(folder / role)

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint must hold besides weights and optimisers, as JSON values."""
        if self.policy is None:
            return {}
        return {
            "weight_version": self.policy.generator.engine.weight_version,
            "kl": self.policy.kl.state(),
        }

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Raises:
            CheckpointError: it is not what this algorithm returns.
        """
        if self.policy is None:
            return
        try:
            self.policy.generator.engine.load_weights((), int(state["weight_version"]))
            self.policy.kl.restore(state["kl"])
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"The worker's part of the checkpoint's run.json is damaged: {error!r}.",
                "It holds the weight version and the state of the KL coefficient.",
                "Delete the newest checkpoint to go on from an older one, or from the start.",
            ) from error

    def write_models(self, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Writes the trained roles as Hugging Face folders; `folder` appears whole or not."""
        with atomic_folder(folder) as partial:
            for role, trainer in self.trainers.items():
                (partial / role).mkdir()
                write_model(trainer.backend.model, tokenizer, partial / role)

    def role_bytes(self) -> dict[Role, RoleBytes]:
        """Returns the memory that each role holds all the time."""
        return {
            role: RoleBytes(
                sum(p.numel() * p.element_size() for p in model.parameters()),
                self.trainers[role].backend.optimizer_bytes() if role in self.trainers else 0,
            )
            for role, model in self.models.items()
        }

    def peak_bytes(self) -> int:
        """Returns the most memory held in the iteration in progress."""
        return peak_bytes(self.device)


def _refuse_unusable(role: Role, model: nn.Module) -> None:
    """Keeps a step that ruined the weights out of checkpoints and of the final model."""
    unusable = unusable_weight(model)
    if unusable is not None:
        raise RunFailed(
            f"The last optimiser step ruined the weights of {role}: {unusable}.",
            "Nothing finite can be computed with such a weight. Older checkpoints are untouched.",
            "Lower the learning rate, and start a new run.",
        )
