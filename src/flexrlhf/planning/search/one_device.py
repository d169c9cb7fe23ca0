"""The prediction for a run in one process: its only plan, simulated with a profile's constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from flexrlhf.config.resolution import batch_sizes, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.names import Role, Stage
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.profiled.batches import (
    PassLimit,
    SequenceLength,
    likely_sequences,
)
from flexrlhf.planning.costs.profiled.profile import Profile
from flexrlhf.planning.costs.profiled.work import RunWork
from flexrlhf.planning.costs.speculation import Speculation
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.placement.prediction import Prediction
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.run_work import CPU_TOKENS, rows_per_item, run_work
from flexrlhf.planning.simulation.simulation import Simulation
from flexrlhf.planning.simulation.simulator import simulate
from flexrlhf.planning.workflow.graph import Graph
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.profiled_durations import ProfiledDurations
from flexrlhf.planning.workflow.shape import IterationShape


@dataclass(frozen=True, slots=True)
class OneDevicePrediction:
    """The plan with what it is expected to take, and the simulated iterations."""

    plan: Plan
    simulation: Simulation


def predict_one_device(
    config: RunConfig,
    plan: Plan,
    profile: Profile,
    models: Mapping[Role, HeldModel],
    sequences: Sequence[SequenceLength],
    *,
    shape: IterationShape | None = None,
    iterations: int = 1,
    speculation: Speculation | None = None,
) -> OneDevicePrediction | None:
    """Returns what a stage is expected to take in one process; None where the profile cannot say.

    Args:
        config: the stage, resolved.
        plan: all roles on device 0.
        profile: of the machine.
        models: of the roles.
        sequences: of one iteration.
        shape: of a run that is launched; found here from the limits unless given.
        iterations: to simulate.
        speculation: of the engine.
    """
    if config.training.precision != profile.costs.dtype or config.rollout.engine != "native":
        return None
    spec = spec_of(config)
    work = run_work(config, sequences, _limit(config, sequences), speculation)
    shape = shape or _shape(config, work)

    @cache
    def graph_of(iteration: int) -> Graph:
        return iteration_graph(spec, plan, shape, iteration)

    durations = ProfiledDurations(models, work, shape, profile.costs)
    simulation = simulate(graph_of, durations, iterations=iterations)
    iteration_s = simulation.iteration_s
    samples = batch_sizes(config).samples_per_iteration
    peaks: dict[Stage, int] = {}
    for task in graph_of(0).tasks:
        peak = durations.task_time(task).peak_bytes
        peaks[task.stage] = max(peak, peaks.get(task.stage, 0))
    predicted = Prediction(
        iteration_s=iteration_s,
        samples_per_s=samples / iteration_s,
        stage_s=simulation.stage_s(),
        shares=simulation.shares(),
        peak_bytes={0: peaks},
        copies=dict.fromkeys(models, 1.0),
    )
    return OneDevicePrediction(replace(plan, predicted=predicted), simulation)


def expected_sequences(config: RunConfig, request: PlanRequest) -> tuple[SequenceLength, ...]:
    """Returns the sequences of an iteration as the config expects them, before any row is read."""
    items, workload = batch_sizes(config).samples_per_iteration, request.workload
    if spec_of(config).generates:
        return tuple(
            likely_sequences(items, workload.prompt, workload.response, workload.samples_per_prompt)
        )
    rows = rows_per_item(config)
    return (SequenceLength(0.0, float(rows * config.data.max_tokens)),) * items


def _limit(config: RunConfig, sequences: Sequence[SequenceLength]) -> PassLimit:
    """The user's limit, or what a trial step would find on a CPU with room enough."""
    training = config.training
    if training.micro_batch_samples is not None:
        return PassLimit(max_items=training.micro_batch_samples)
    longest = max(sequence.tokens for sequence in sequences)
    if training.micro_batch_tokens != "auto":
        return PassLimit(max_tokens=max(longest, float(training.micro_batch_tokens)))
    items = min(batch_sizes(config).mini_batch_samples, max(1, int(CPU_TOKENS // longest)))
    return PassLimit(max_tokens=items * longest)


def _shape(config: RunConfig, work: RunWork) -> IterationShape:
    sizes = batch_sizes(config)
    mini_batches = range(sizes.num_mini_batches)
    count = max(len(work.trained(number, sizes.num_mini_batches)) for number in mini_batches)
    return IterationShape(
        num_samples=sizes.samples_per_iteration,
        rollout_micro_batches=config.rollout.micro_batches if spec_of(config).generates else 1,
        mini_batches=sizes.num_mini_batches,
        micro_batches_per_mini_batch=count,
        epochs=sizes.epochs,
    )
