"""The training loop of one run or stage."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from flexrlhf.config.resolution import settled
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.atomic_files import atomic_folder
from flexrlhf.core.clock import Clock, WallClock
from flexrlhf.core.errors import CheckpointError, DataError
from flexrlhf.core.timeline import Timeline, read_trace, write_trace
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.workflow.graph import Graph
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.shape import IterationShape
from flexrlhf.runtime.evaluation import is_evaluated, next_evaluation
from flexrlhf.runtime.executor import Executor
from flexrlhf.runtime.garbage import old_objects_apart
from flexrlhf.runtime.iteration_result import IterationResult
from flexrlhf.runtime.measurements import joined
from flexrlhf.runtime.records import RunRecords
from flexrlhf.runtime.recover import CheckpointStore, seed_random_states
from flexrlhf.runtime.run_folder import write_failure
from flexrlhf.runtime.telemetry import memory_efficiency, timeline_metrics
from flexrlhf.runtime.workers import Workers

logger = logging.getLogger(__name__)

TIMELINE_ITERATIONS = 100
"""Iterations that `timeline.json` shows, the newest."""
WHOLE_NUMBERS: Final = frozenset({"samples", "tokens", "weights/version"})
"""Metrics that count something."""


class Listener(Protocol):
    """Hears how a run goes on."""

    def start_stage(self, name: str, iterations: int, finished: int) -> None:
        """A stage begins, or goes on after `finished` iterations."""
        ...

    def finish_iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """An iteration, counted from 1, is finished."""
        ...


class Launched(Protocol):
    """Workers that are ready for their first task, and what the loop must know of them."""

    @property
    def config(self) -> RunConfig:
        """The run, with every `auto` replaced by its value."""
        ...

    @property
    def spec(self) -> AlgorithmSpec:
        """What its algorithm needs."""
        ...

    @property
    def shape(self) -> IterationShape:
        """How an iteration is cut."""
        ...

    def connect(self, clock: Clock) -> Workers:
        """Takes the workers into use, with a clock for their spans."""
        ...


class TrainingRun:
    """One run or stage: its workers, its folder, and how far it has come.

    Args:
        name: of the stage, for messages.
        folder: the run folder.
        launched: the workers and their config.
        plan: where the roles sit.
        predicted: iterations as the planner expects them, which `timeline.json` shows beside.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        launched: Launched,
        plan: Plan,
        predicted: Timeline | None = None,
    ) -> None:
        run = launched.config.run
        self.name = name
        self.iterations = launched.config.training.iterations
        self._folder = folder
        self._launched = launched
        self._plan = plan
        self._predicted = {} if predicted is None else {"predicted": predicted}
        self._every = run.checkpoint_every
        self._num_in_flight = launched.shape.num_in_flight
        self._deadline_s = run.task_deadline_s
        self._checkpoints = CheckpointStore(folder / "checkpoints", keep=run.keep_checkpoints)
        self._records = RunRecords(folder, run.trackers)
        self._worst_gap = settled(launched.config.rollout.gap_alarm)
        self._timeline = _earlier_timeline(folder / "timeline.json")
        self._workers = launched.connect(_clock_after(self._timeline))
        self._tracks = self._workers.tracks

    def train(self, listener: Listener) -> None:
        """Trains from the newest checkpoint, or from the start, to the last iteration."""
        with old_objects_apart():
            self._train(listener)

    def _train(self, listener: Listener) -> None:
        finished, ahead = self._restore()
        executor = Executor(self._workers, start_iteration=finished, deadline_s=self._deadline_s)
        executor.hold(self._next_pause(finished))
        listener.start_stage(self.name, self.iterations, finished)
        if finished == 0:
            self._record_initial_evaluation()
        submitted = finished
        while finished < self.iterations:
            while submitted < min(self.iterations, finished + self._num_in_flight):
                executor.submit(self._graph(submitted), ahead.get(submitted))
                submitted += 1
            result = executor.finish_next()
            finished += 1
            metrics = self._metrics(result, executor.unfinished) | self._evaluation(finished)
            self._record(finished, metrics)
            if self._is_checkpoint_due(finished):
                executor.reach_barrier(finished)
                self._save(finished, executor.unfinished)
            executor.hold(self._next_pause(finished))
            listener.finish_iteration(finished, metrics)
        self._write_models()

    def _next_pause(self, finished: int) -> int:
        """Returns how many iterations will be finished at the next checkpoint or evaluation.

        None from that number on passes its barrier before: both are of the weights that so many
        iterations made, whatever was generated ahead with the version before.
        """
        checkpoint = (finished // self._every + 1) * self._every
        return int(min(checkpoint, next_evaluation(self._launched.config, finished)))

    def close(self) -> None:
        """Lets go of workers and trackers and writes the timeline.

        Raises:
            RunFailed: the folder cannot be written.
        """
        self._workers.close()
        self._records.close()
        self._write_timeline()

    def _graph(self, iteration: int) -> Graph:
        return iteration_graph(self._launched.spec, self._plan, self._launched.shape, iteration)

    def _ask(self, method: str, *arguments: Any, beside: bool = False) -> list[Any]:
        return self._workers.ask(method, *arguments, deadline_s=self._deadline_s, beside=beside)

    def _metrics(
        self, result: IterationResult, unfinished: Sequence[IterationResult]
    ) -> dict[str, float]:
        """Joins what tasks measured with what the timeline and the memory show."""
        iteration = result.iteration + 1
        for span in result.spans:
            self._timeline.append(span)
        self._timeline.forget(iteration - TIMELINE_ITERATIONS + 1)
        in_flight = [span for other in unfinished for span in other.spans]
        timeline = self._timeline
        if in_flight:
            timeline = Timeline(self._tracks, (*timeline.spans, *in_flight))
        before = iteration - 1 in timeline.iterations
        metrics = joined(result.measurements)
        metrics |= timeline_metrics(
            timeline,
            iteration,
            after_s=timeline.window(iteration - 1)[1] if before else -math.inf,
        )
        for count in ("samples", "tokens"):
            rate = metrics[count] / metrics["time/iteration_s"]
            metrics[f"throughput/{count}_per_s"] = rate
        for whole in WHOLE_NUMBERS & metrics.keys():
            metrics[whole] = int(metrics[whole])
        metrics["memory/peak_bytes"] = max(self._ask("peak_bytes", beside=True))
        held = dict(zip(self._tracks, self._ask("role_bytes", beside=True), strict=True))
        metrics["memory/efficiency"] = memory_efficiency(result.spans, held)
        return metrics

    def _evaluation(self, iteration: int) -> dict[str, float]:
        if not is_evaluated(self._launched.config, iteration):
            return {}
        self._ask("answer_held_out")
        count = self._launched.config.run.recorded_samples
        answers = self._ask("judge_held_out", count)
        rows = [row for _, of_worker in answers for row in of_worker]
        rows.sort(key=lambda row: row["sample_id"])
        self._records.write_samples(iteration, rows[:count], "evaluation")
        return joined(measured for measured, _ in answers)

    def _record_initial_evaluation(self) -> None:
        metrics = self._evaluation(0)
        if metrics:
            self._records.write(0, metrics)

    def _record(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._records.write(iteration, metrics)
        count = self._launched.config.run.recorded_samples
        found = self._ask("first_samples", iteration - 1, count, beside=True)
        rows = [row for of_worker in found for row in of_worker]
        self._records.write_samples(iteration, rows[:count], "train")
        gap = metrics.get("logprob_gap/max", 0.0)
        if not gap <= self._worst_gap:  # nan alarms too
            self._worst_gap = 2 * gap  # one warning, and another only if it grows
            logger.warning(
                "%s, iteration %d: engine and trainer differ by %.2g in a log-prob, more than "
                "rollout.gap_alarm = %g. The engine may hold other weights than the trainer.",
                self.name,
                iteration,
                gap,
                settled(self._launched.config.rollout.gap_alarm),
            )

    def _is_checkpoint_due(self, iteration: int) -> bool:
        return iteration % self._every == 0 or iteration == self.iterations

    def _save(self, iteration: int, unfinished: Sequence[IterationResult]) -> None:
        """Writes a checkpoint, beside whatever generates the iterations after the next."""
        trained = self._launched.spec.trained
        ahead = [result for result in unfinished if self._is_generated(result)]
        done = {result.iteration: result.done for result in ahead}
        self._checkpoints.save(
            iteration,
            lambda folder: self._ask("save", folder, done, beside=True),
            {"worker": self._state(), "ahead": [result.to_json() for result in ahead]},
            num_bytes=sum(
                held.saved
                for of_worker in self._ask("role_bytes", beside=True)
                for role, held in of_worker.items()
                if role in trained
            ),
        )
        self._write_timeline()

    def _is_generated(self, result: IterationResult) -> bool:
        """Whether all answers of an iteration are there.

        Its parts come out of one stream of answers, so that of another nothing is kept: its weights
        are those of the checkpoint, and it begins anew.
        """
        tasks = self._graph(result.iteration).tasks
        generated = {task.name for task in tasks if task.operation == "generate"}
        return bool(generated) and generated.issubset(result.done)

    def _state(self) -> dict[str, Any]:
        """Returns what the workers must remember besides their shards; all that do say the same."""
        return next((state for state in self._ask("state", beside=True) if state), {})

    def _write_models(self) -> None:
        folder = self._folder / "model"
        self._ask("offer_weights", self.iterations)
        try:
            with atomic_folder(folder) as partial:
                self._ask("write_models", partial)
        except OSError as error:
            raise write_failure(folder, error) from error

    def _write_timeline(self) -> None:
        path = self._folder / "timeline.json"
        try:
            write_trace(path, {"measured": self._timeline, **self._predicted})
        except OSError as error:
            raise write_failure(path, error) from error

    def _restore(self) -> tuple[int, dict[int, IterationResult]]:
        """Loads the newest checkpoint.

        Returns:
            How many iterations are finished, and what is done of others, by number.
        """
        state = self._checkpoints.load(lambda folder: self._ask("load", folder))
        finished = 0 if state is None else int(state["iteration"])
        ahead = {} if state is None else self._restore_ahead(state)
        if state is None:
            seed_random_states(self._launched.config.run.seed)
        else:
            self._ask("restore_state", state.get("worker", {}))
            self._ask("offer_weights", finished)
            self._ask("take_weights", finished)
            logger.info("%s: going on after iteration %d", self.name, finished)
        self._records.restart_after(
            finished if state is not None else -1,
            lambda iteration: is_evaluated(self._launched.config, iteration),
        )
        kept = [s for s in self._timeline.spans if (s.iteration or 0) <= finished]
        self._timeline = Timeline(self._tracks, kept)
        return finished, ahead

    def _restore_ahead(self, state: Mapping[str, Any]) -> dict[int, IterationResult]:
        """Gives the workers what they had generated ahead of a checkpoint."""
        try:
            results = [IterationResult.from_json(row) for row in state.get("ahead", ())]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"The checkpoint's run.json is damaged: {error!r}.",
                "`ahead` says what was done of iterations that were not finished.",
                "Delete the newest checkpoint to go on from an older one, or from the start.",
            ) from error
        if results:
            self._ask("load_experience", self._checkpoints.newest())
        return {result.iteration: result for result in results}


def _earlier_timeline(path: Path) -> Timeline:
    """Returns the timeline that an interrupted run left, or an empty one."""
    if path.is_file():
        try:
            return read_trace(path).get("measured", Timeline())
        except DataError as error:  # no reason not to go on training
            logger.warning("The timeline begins anew: %s", error.wrong)
    return Timeline()


def _clock_after(timeline: Timeline) -> WallClock:
    """Returns a clock that goes on where a timeline ends."""
    end_s = max((span.end_s for span in timeline.spans), default=0.0)
    return WallClock(time.monotonic() - end_s)
