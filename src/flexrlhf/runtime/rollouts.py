"""Answers of the policy with scores and advantages: what algorithms that generate do first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from flexrlhf.core.errors import CheckpointError, StaleWeights
from flexrlhf.core.names import Role
from flexrlhf.learning.algorithms.kl import KLController
from flexrlhf.learning.data.collation import Item
from flexrlhf.learning.data.experience import Sample
from flexrlhf.learning.rollout.consistency import logprob_gap
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.scoring.advantage import AdvantageSettings, assign_advantages
from flexrlhf.learning.scoring.passes import score_logprobs, score_shared, score_values
from flexrlhf.planning.workflow.graph import Task
from flexrlhf.runtime.generation import Generator, PromptDraw
from flexrlhf.runtime.item_source import counts_of
from flexrlhf.runtime.measurements import Measurement, Measurements, mean_and_std
from flexrlhf.runtime.prompt_reading import prompt_measurements
from flexrlhf.runtime.reward_role import RewardRole
from flexrlhf.runtime.speculation import speculation_measurements


@dataclass(slots=True)
class Rollouts:
    """Generates, scores and values answers; holds those of the iteration in progress."""

    draw: PromptDraw
    generator: Generator
    sampling: Sampling
    reward: RewardRole
    advantage: AdvantageSettings
    kl: KLController
    models: Mapping[Role, nn.Module]
    """The roles that score."""
    shares_trunk: bool
    """The actor's pass gives values too."""
    num_micro_batches: int
    """Parts in which an iteration's prompts are answered."""
    score_tokens: int
    """Token budget of a scoring chunk."""
    context: Callable[[], AbstractContextManager[Any]]
    """Makes the context that forward passes run in; frozen roles run as the trained ones do."""
    items: Sequence[Item] = field(default=(), init=False)
    _parts: dict[int, list[Sample]] = field(default_factory=dict[int, list[Sample]], init=False)
    """Samples by generation micro-batch."""

    def items_of(self, iteration: int) -> Sequence[Item]:  # noqa: ARG002 - there is but one
        """Returns the samples of the iteration in progress, once they have advantages."""
        return self.items

    @property
    def samples(self) -> list[Sample]:
        """Samples of the iteration in progress, in id order."""
        everything = [sample for part in self._parts.values() for sample in part]
        return sorted(everything, key=lambda sample: sample.sample_id)

    def run(self, task: Task) -> Measurements:
        """Carries out one task and returns what it measured.

        Raises:
            StaleWeights: the engine holds other weights than the task needs.
        """
        match task:
            case Task(operation="generate", micro_batch=int(part)):
                check_version(self.generator.engine.weight_version, task)
                return self._generate(task.iteration, part)
            case Task(operation="logprobs", micro_batch=int(part), role=str(role)):
                return self._logprobs(role, self._parts[part])
            case Task(operation="values", micro_batch=int(part)):
                return self._values(self._parts[part])
            case Task(operation="rewards", micro_batch=int(part)):
                self.reward.score(self._parts[part])
                return {}
            case Task(operation="advantage"):
                return self._advantage(task.iteration)
            case Task(operation="install", weight_version=int(version)):
                return self._install(version)
            case _:
                raise ValueError(f"No work of rollouts: {task}.")

    def _generate(self, iteration: int, part: int) -> Measurements:
        if part == 0:
            self._parts, self.items = {}, ()
        draws = self.draw.micro_batch(iteration, part, self.num_micro_batches)
        engine = self.generator.engine
        engine.take_counts()  # those of an evaluation
        engine.take_prompt_counts()
        with self.context():
            samples = self.generator.answer(
                [(draw, self.draw.prompt(draw)) for draw in draws],
                self.draw.answers_per_prompt,
                self.sampling,
            )
        self._parts[part] = samples
        measured = length_measurements(samples) | speculation_measurements(engine)
        return measured | prompt_measurements(engine)

    def _logprobs(self, role: Role, samples: Sequence[Sample]) -> Measurements:
        model = self.models[role]
        passes = {"temperature": self.sampling.temperature, "max_tokens": self.score_tokens}
        with self.context():
            if role != "actor":
                keep(f"{role}_logprobs", score_logprobs(model, samples, **passes), samples)
                return {}
            if self.shares_trunk:
                logprobs, values = score_shared(model, samples, **passes)
                keep("values", values, samples)
            else:
                logprobs = score_logprobs(model, samples, **passes)
        keep("old_logprobs", logprobs, samples)
        return gap_measurement(samples)

    def _values(self, samples: Sequence[Sample]) -> Measurements:
        with self.context():
            values = score_values(self.models["critic"], samples, max_tokens=self.score_tokens)
        keep("values", values, samples)
        return {}

    def _advantage(self, iteration: int) -> Measurements:
        self.items = self.samples
        return value_batch(
            self.items, iteration, self.draw.answers_per_prompt, self.advantage, self.kl
        )

    def _install(self, version: int) -> Measurements:
        """Gives the engine the actor's new weights; they are shared, so only the version moves."""
        self.generator.engine.load_weights((), version)
        return {"weights/version": Measurement(version, reduction="max")}

    def take_weights(self, version: int) -> None:
        """Says that the shared weights are those of `version`."""
        self.generator.engine.load_weights((), version)

    def state(self) -> dict[str, Any]:
        """Returns the KL coefficient's state, as JSON values."""
        return {"kl": self.kl.state()}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Raises:
            CheckpointError: it is not what this algorithm returns.
        """
        try:
            self.kl.restore(state["kl"])
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"The worker's part of the checkpoint's run.json is damaged: {error!r}.",
                "It holds the state of the KL coefficient.",
                "Delete the newest checkpoint to go on from an older one, or from the start.",
            ) from error


def value_batch(
    samples: Sequence[Sample],
    iteration: int,
    answers_per_prompt: int,
    settings: AdvantageSettings,
    kl: KLController,
) -> Measurements:
    """Writes advantages into a whole batch, moves the KL coefficient, and measures the batch.

    Args:
        samples: all of them, scored, in the order of their ids.
        iteration: that trains on them.
        answers_per_prompt: size of a group.
        settings: how rewards become advantages.
        kl: the coefficient's controller.
    """
    statistics = assign_advantages(
        samples,
        [sample.sample_id // answers_per_prompt for sample in samples],
        settings,
        kl_coef=kl.coefficient,
    )
    measured = _reward_measurements(samples) | counts_of(samples)
    versions = [float(iteration - sample.weight_version) for sample in samples]
    measured["staleness/mean"] = Measurement.mean_of(versions)
    measured["staleness/max"] = Measurement(max(versions), reduction="max")
    if statistics.kl_per_token is not None and statistics.kl_per_answer is not None:
        measured["kl/mean"] = Measurement(statistics.kl_per_token)
        measured["kl/coefficient"] = Measurement(kl.coefficient)
        kl.update(statistics.kl_per_answer, len(samples))
    if statistics.num_groups:
        measured["groups/zero_variance"] = Measurement(
            statistics.num_zero_variance_groups / statistics.num_groups
        )
    return measured


def length_measurements(samples: Sequence[Sample]) -> Measurements:
    """Returns the mean length of answers, and the share of those that ended by themselves."""
    lengths = [float(sample.num_response_tokens) for sample in samples]
    return {
        "response_tokens/mean": Measurement.mean_of(lengths),
        "response_tokens/finished": Measurement.mean_of([float(s.finished) for s in samples]),
    }


def check_version(held: int, task: Task) -> None:
    """Checks that an engine holds the weights that a task needs, or newer ones.

    Raises:
        StaleWeights: it does not.
    """
    assert task.weight_version is not None, "generation has a version"
    if held < task.weight_version:
        raise StaleWeights(
            f"The engine holds weights {held}, task {task.name} needs {task.weight_version}.",
            "Weights are installed before the next generation.",
            "This is a fault of the program: please report it with the run folder's log.",
        )


def keep(name: str, values: Sequence[Any], samples: Sequence[Sample]) -> None:
    """Writes one value per sample into a field of its."""
    for sample, value in zip(samples, values, strict=True):
        sample.fields[name] = value


def gap_measurement(samples: Sequence[Sample]) -> Measurements:
    """Returns the largest difference between the engine's log-probs and the trainer's."""
    if not samples:
        return {}
    gap = logprob_gap(
        (sample.fields["logprobs"] for sample in samples),
        (sample.fields["old_logprobs"] for sample in samples),
    )
    return {"logprob_gap/max": Measurement(gap, reduction="max")}


def _reward_measurements(samples: Sequence[Sample]) -> Measurements:
    """Returns the total reward's mean and deviation, and each part's mean where it applies."""
    measured = mean_and_std("reward", [sample.reward for sample in samples])
    for part in dict.fromkeys(name for sample in samples for name in sample.reward_parts):
        measured[f"reward/{part}"] = Measurement.mean_of(
            [sample.reward_parts.get(part, math.nan) for sample in samples]
        )
    return measured
