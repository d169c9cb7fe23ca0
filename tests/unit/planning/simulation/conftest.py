from __future__ import annotations

import pytest

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.planning.simulation.simulator import simulate
from flexrlhf.planning.workflow.iteration import iteration_graph
from flexrlhf.planning.workflow.shape import IterationShape


@pytest.fixture
def simulated(fixed_durations):
    """Simulates PPO: `simulated(plan, times, rollout_micro_batches=4, iterations=2, ...)`."""

    def run(plan, times, *, links=None, iterations=None, scheduler=None, spec="ppo", **cuts):
        shape = IterationShape(num_samples=24, **cuts)
        return simulate(
            lambda iteration: iteration_graph(algorithm_spec(spec), plan, shape, iteration),
            fixed_durations(times, links),
            num_in_flight=shape.num_in_flight,
            sync_every=shape.sync_every,
            iterations=iterations,
            scheduler=scheduler,
        )

    return run


@pytest.fixture
def when():
    """Returns start and end by name, of one iteration: what the tests work out by hand."""

    def table(simulation, iteration=0):
        return {
            activity.item.name: (activity.start_s, activity.end_s)
            for activity in simulation.activities
            if activity.item.iteration == iteration
        }

    return table
