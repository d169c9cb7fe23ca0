"""One worker's part of a rollout: it generates for its replica, scores its share, and passes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec, ScoreStep
from flexrlhf.core.errors import CheckpointError
from flexrlhf.core.names import Role
from flexrlhf.learning.algorithms.kl import KLController
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.rollout.protocol import Sampling
from flexrlhf.learning.scoring.advantage import AdvantageSettings
from flexrlhf.learning.scoring.passes import score_logprobs, score_shared, score_values
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.runtime.devices.device_map import DeviceMap, trained_by
from flexrlhf.runtime.devices.exchange import HELD_OUT, ExperienceExchange
from flexrlhf.runtime.devices.held_roles import HeldRoles
from flexrlhf.runtime.generation import EVALUATION_IDS, Generator, PromptDraw, SampleStream
from flexrlhf.runtime.measurements import Measurements
from flexrlhf.runtime.reward_role import RewardRole
from flexrlhf.runtime.rollouts import (
    check_version,
    gap_measurement,
    keep,
    length_measurements,
    value_batch,
)
from flexrlhf.runtime.shares import balanced_shares
from flexrlhf.runtime.speculation import speculation_measurements

_KEPT: Final = 3
"""Batches that are kept for the records: those of iterations in flight."""


@dataclass(slots=True)
class DeviceRollouts:
    """Carries out the tasks before training of one worker."""

    spec: AlgorithmSpec
    device_map: DeviceMap
    held: HeldRoles
    exchange: ExperienceExchange
    draw: PromptDraw
    held_out: Sequence[Prompt]
    held_out_sampling: Sampling
    held_out_answers: int
    """Per held-out prompt."""
    generator: Generator | None
    """None where the worker generates nothing."""
    reward: RewardRole | None
    """None where the worker gives no rewards."""
    sampling: Sampling
    advantage: AdvantageSettings
    kl: KLController
    num_micro_batches: int
    score_tokens: int
    context: Callable[[], AbstractContextManager[Any]]
    passed: dict[int, list[Sample]] = field(default_factory=dict[int, list[Sample]], init=False)
    """What the barrier passed lately, by iteration."""
    _stream: SampleStream | None = field(default=None, init=False)
    """Samples of the iteration that is being generated, where they end in any order."""

    @property
    def samples(self) -> list[Sample]:
        """The answers of the last batch that passed the barrier here."""
        return self.passed[max(self.passed)] if self.passed else []

    def first_of(self, iteration: int) -> list[Sample]:
        """Returns the answers of an iteration that lately passed the barrier here."""
        return self.passed.get(iteration, [])

    @property
    def is_barrier(self) -> bool:
        """Whether this worker is the one that speaks for the barrier."""
        return self._rank == self.device_map.barrier_ranks[0]

    @property
    def _rank(self) -> int:
        return self.exchange.rank

    def run(self, task: Task) -> Measurements:
        """Carries out one task and returns what it measured.

        Raises:
            StaleWeights: the engine holds other weights than the task needs.
        """
        match task:
            case Task(operation="generate", micro_batch=int(part)):
                return self._generate(task, part)
            case Task(operation="logprobs" | "values" | "rewards", micro_batch=int(part)):
                assert task.role is not None, "scoring is a role's"
                return self._score(task, task.role, part)
            case Task(operation="advantage"):
                return self._value(task.iteration)
            case _:
                raise ValueError(f"No work of rollouts: {task}.")

    def items_of(self, iteration: int) -> list[Sample]:
        """Returns what an iteration trains on, once its barrier has passed."""
        return self.exchange.whole(iteration)

    def prefetch(
        self, transfer: Transfer, sources: Sequence[Task], targets: Sequence[Task]
    ) -> None:
        """Takes over what the targets of a transfer will need of its sources."""
        target = targets[0]
        if target.operation == "forward_backward":
            self.exchange.whole(transfer.iteration)
        for source in sources:
            if source.micro_batch is None:
                continue
            if target.operation == "advantage":
                self.exchange.gather_part(
                    transfer.iteration, source.micro_batch, self._step_of(source)
                )
            elif source.operation == "generate":
                for task in targets:
                    assert task.role is not None, "scoring is a role's"
                    self.exchange.share(transfer.iteration, source.micro_batch, task.role)

    def forget(self, iteration: int) -> None:
        """Drops what was made in an iteration."""
        self.exchange.forget(iteration)

    def answer_held_out(self) -> None:
        """Answers this replica's held-out prompts."""
        self.exchange.forget(HELD_OUT)
        if self.generator is None:
            return
        first = -(-EVALUATION_IDS // self.held_out_answers)
        replicas, replica = self._engine_place
        draws = [(first + n, prompt) for n, prompt in enumerate(self.held_out)][replica::replicas]
        with self.context():
            samples = self.generator.answer(draws, self.held_out_answers, self.held_out_sampling)
        self.generator.engine.take_counts()  # a rollout's measurements are of training alone
        if self._rank in self.device_map.generators:
            self.exchange.keep_generated(HELD_OUT, 0, samples)

    def judge_held_out(self) -> list[Sample]:
        """Rewards this worker's share of the held-out answers; only the replica's first has any."""
        if self.reward is None:
            return []
        samples = self.exchange.share(HELD_OUT, 0, "reward")
        self.reward.score(samples)
        is_first = self._rank in self.device_map.scorers("reward")
        return samples if is_first else []

    def prompt_of(self, sample_id: int) -> Prompt:
        """Returns the prompt that a sample answers."""
        return prompt_of(sample_id, self.draw, self.held_out, self.held_out_answers)

    def take_weights(self, version: int) -> None:
        """Nothing to do: the worker writes weights into models and engine itself."""

    def state(self) -> dict[str, Any]:
        """Returns the state of the KL coefficient, of the worker that speaks for the barrier."""
        return {"kl": self.kl.state()} if self.is_barrier else {}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned.

        Raises:
            CheckpointError: it is not what this algorithm returns.
        """
        try:
            self.kl.restore(state["kl"])
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"The workers' part of the checkpoint's run.json is damaged: {error!r}.",
                "It holds the state of the KL coefficient.",
                "Delete the newest checkpoint to go on from an older one, or from the start.",
            ) from error

    @property
    def _engine_place(self) -> tuple[int, int]:
        """The number of engine replicas, and which this worker is a part of."""
        mesh = self.held.engine_mesh
        assert mesh is not None, "only workers with an engine generate"
        return mesh.num_replicas, mesh.replica

    def _generate(self, task: Task, part: int) -> Measurements:
        assert self.generator is not None, "the device map puts generation where an engine is"
        check_version(self.generator.engine.weight_version, task)
        with self.context():
            if self.device_map.streams:
                samples = self._streamed(self.generator, task.iteration, part)
            else:
                draws = self._draws(task.iteration, part)
                samples = self.generator.answer(draws, self._answers_each, self.sampling)
        measured = length_measurements(samples) | speculation_measurements(self.generator.engine)
        if self._rank not in self.device_map.generators:
            return {}
        self.exchange.keep_generated(task.iteration, part, samples)
        return measured

    def _streamed(self, generator: Generator, iteration: int, part: int) -> list[Sample]:
        """Returns the samples that end next, as many as this replica draws for the part.

        Answers of later parts begin where those of earlier ones have ended, so that a long one
        holds nobody back; as many run at a time as in a part.
        """
        shares = [self._draws(iteration, number) for number in range(self.num_micro_batches)]
        if part == 0:
            self._stream = generator.stream(
                [draw for share in shares for draw in share],
                self._answers_each,
                self.sampling,
                at_once=max(1, max(map(len, shares)) * self._answers_each),
            )
        assert self._stream is not None, "a rollout begins with its first part"
        return self._stream.take(len(shares[part]) * self._answers_each)

    @property
    def _answers_each(self) -> int:
        return self.draw.answers_per_prompt

    def _draws(self, iteration: int, part: int) -> list[tuple[int, Prompt]]:
        """Number and prompt of what this replica draws for a part of a rollout."""
        replicas, replica = self._engine_place
        draws = self.draw.micro_batch(iteration, part, self.num_micro_batches)
        shares = balanced_shares([1] * len(draws), replicas, self.device_map.engine_speeds)
        return [(draws[place], self.draw.prompt(draws[place])) for place in shares[replica]]

    def _score(self, task: Task, role: Role, part: int) -> Measurements:
        samples = self.exchange.share(task.iteration, part, role)
        fields = self._written(task, role, samples)
        if self._rank not in self.device_map.scorers(role):
            return {}
        self.exchange.keep_scores(task.iteration, part, role, samples, fields)
        return gap_measurement(samples) if "old_logprobs" in fields else {}

    def _written(self, task: Task, role: Role, samples: Sequence[Sample]) -> tuple[str, ...]:
        """Scores samples and returns the fields that were written; rewards write none."""
        if task.operation == "rewards":
            assert self.reward is not None, "the device map puts rewards where their role is"
            self.reward.score(samples)
            return ()
        model = self.held.models[role]
        with self.context():
            if task.operation == "values":
                keep("values", score_values(model, samples, max_tokens=self.score_tokens), samples)
                return ("values",)
            passes = {"temperature": self.sampling.temperature, "max_tokens": self.score_tokens}
            is_policy = trained_by(role) == "actor"
            if is_policy and self.spec.shares_trunk:
                logprobs, values = score_shared(model, samples, **passes)
                keep("values", values, samples)
                keep("old_logprobs", logprobs, samples)
                return ("old_logprobs", "values")
            name = "old_logprobs" if is_policy else f"{role}_logprobs"
            keep(name, score_logprobs(model, samples, **passes), samples)
            return (name,)

    def _value(self, iteration: int) -> Measurements:
        """Every worker of the barrier values the whole batch, and so finds the same numbers."""
        samples = self.exchange.gather(iteration, self.num_micro_batches, self.spec.scored)
        self.passed = {k: v for k, v in self.passed.items() if k > iteration - _KEPT}
        self.passed[iteration] = samples
        measured = value_batch(
            samples, iteration, self.draw.answers_per_prompt, self.advantage, self.kl
        )
        self.exchange.keep_whole(iteration, samples)
        return measured if self.is_barrier else {}

    def _step_of(self, source: Task) -> list[ScoreStep]:
        if source.operation == "generate":
            return []
        return [
            step for step in self.spec.scored if self.device_map.serving(step.role) == source.role
        ]


def prompt_of(
    sample_id: int, draw: PromptDraw, held_out: Sequence[Prompt], held_out_answers: int
) -> Prompt:
    """Returns the prompt that a sample of training, or of held-out rows, answers."""
    if sample_id < EVALUATION_IDS:
        return draw.prompt(sample_id // draw.answers_per_prompt)
    first = -(-EVALUATION_IDS // held_out_answers)
    return held_out[sample_id // held_out_answers - first]
