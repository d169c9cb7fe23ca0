"""Plans whose iterations are driven, and how long each of their tasks and transfers takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexrlhf import app
from flexrlhf.config.resolution import spec_of
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.evaluation import iteration_shape
from flexrlhf.planning.search.stage_plans import stage_plans
from flexrlhf.planning.simulation.simulation import Simulation
from flexrlhf.planning.workflow.graph import Graph
from flexrlhf.planning.workflow.iteration import iteration_graph

_PLANS: Final = Path(__file__).parents[2] / "examples" / "plans"


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with its simulated course."""

    spec: AlgorithmSpec
    plan: Plan
    simulation: Simulation
    graph_of: Callable[[int], Graph]

    @property
    def items(self) -> int:
        """Tasks and transfers of an iteration."""
        graph = self.simulation.graphs[0]
        return len(graph.tasks) + len(graph.transfers)

    def seconds(self, factor: float) -> Mapping[str, float]:
        """Returns what each task and transfer takes, times `factor`, by name."""
        number = self.simulation.window.last
        return {
            done.item.name: factor * (done.end_s - done.start_s)
            for done in self.simulation.activities
            if done.item.iteration == number
        }


def planned(name: str, strategy: str, overrides: Sequence[str] = ()) -> Planned:
    """Returns the best plan of a strategy for a shipped request.

    Args:
        name: of the file in examples/plans.
        strategy: of the plan.
        overrides: of keys of the request.
    """
    config = app.load(_PLANS / f"{name}.yaml", overrides)
    (stage,) = stage_plans(config, advised=False)
    found = next(f.best for f in stage.ranked.found if f.best.plan.strategy == strategy)
    assert found.simulation is not None, "what was found was simulated"
    spec, shape = spec_of(config), iteration_shape(stage.request, found.plan)
    return Planned(
        spec,
        found.plan,
        found.simulation,
        lambda iteration: iteration_graph(spec, found.plan, shape, iteration),
    )
