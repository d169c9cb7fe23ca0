"""What a profile says of a run on several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.profiled.batches import PassLimit, SequenceLength
from flexrlhf.planning.costs.profiled.work import RunWork
from flexrlhf.planning.costs.profiled.worker_costs import WorkerCosts
from flexrlhf.planning.costs.speculation import Speculation
from flexrlhf.planning.placement.placed_role import PlacedRole
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.run_work import CPU_TOKENS, run_work
from flexrlhf.planning.workflow.graph import Graph, Task
from flexrlhf.planning.workflow.shape import IterationShape
from flexrlhf.planning.workflow.worker_durations import WorkerDurations


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """An iteration's work, and the machine that does it."""

    costs: WorkerCosts
    work: RunWork
    has_limit: bool
    """Whether the user says how large a pass may be; else the plan does."""
    are_apart: bool = False
    """Whether nodes are machines of their own, with their cores and links; else they share one."""

    @property
    def slowdown(self) -> Callable[[int], float] | None:
        """What groups cost each other that work at one time; None where `durations` counts it."""
        return None if self.are_apart else self.costs.slowdown

    def durations(
        self,
        spec: AlgorithmSpec,
        plan: Plan,
        roles: Sequence[PlacedRole],
        *,
        graph: Graph,
        shape: IterationShape,
        peak_bytes: Callable[[Task], int],
        cluster: Cluster,
    ) -> WorkerDurations:
        """Returns the times of a plan.

        Args:
            spec: of the algorithm.
            plan: with micro-batches.
            roles: of the plan that have a model.
            graph: of any iteration.
            shape: of the iterations.
            peak_bytes: of the fullest device of a task's group.
            cluster: of the plan.
        """
        work = replace(self.work, limit=self.limit_of(spec, plan))
        return WorkerDurations(
            spec,
            roles,
            graph=graph,
            shape=shape,
            work=work,
            costs=self.costs,
            peak_bytes=peak_bytes,
            machines=cluster if self.are_apart else None,
        )

    def limit_of(self, spec: AlgorithmSpec, plan: Plan) -> PassLimit:
        """Returns how large a pass of a run by this plan is: one limit for all roles."""
        planned = [plan.placement[role].micro_batch_samples for role in spec.trained]
        given = [samples for samples in planned if samples]
        if self.has_limit or not given:
            return self.work.limit
        return PassLimit(max_items=min(given))

    def shape_of(self, spec: AlgorithmSpec, plan: Plan, shape: IterationShape) -> IterationShape:
        """Returns the shape with as many micro-batches as the limit makes."""
        limit = self.limit_of(spec, plan)
        items = -(-len(self.work.sequences) // shape.mini_batches)
        longest = max(sequence.tokens for sequence in self.work.sequences)
        most = limit.max_items or max(1, int((limit.max_tokens or longest) // longest))
        replicas = min(plan.placement[role].data_parallel for role in spec.trained)
        share = -(-items // replicas)
        return replace(shape, micro_batches_per_mini_batch=-(-share // most))

    def faster(self, compute: float = 1.0, communication: float = 1.0) -> WorkerRun:
        """Returns the same on faster cores, or with faster ways between processes."""
        return replace(self, costs=self.costs.faster(compute, communication))


def worker_run(
    config: RunConfig,
    costs: WorkerCosts,
    sequences: Sequence[SequenceLength],
    *,
    are_apart: bool = False,
    speculation: Speculation | None = None,
) -> WorkerRun | None:
    """Returns what the profile says; None where it cannot.

    Args:
        config: one stage, resolved.
        costs: of the machine.
        sequences: of one iteration.
        speculation: of the engine.
        are_apart: as `WorkerRun` has it.
    """
    if config.training.precision != costs.costs.dtype or config.rollout.engine != "native":
        return None
    training = config.training
    longest = max(sequence.tokens for sequence in sequences)
    limit = PassLimit(max_tokens=max(longest, float(CPU_TOKENS)))
    if training.micro_batch_samples is not None:
        limit = PassLimit(max_items=training.micro_batch_samples)
    elif training.micro_batch_tokens != "auto":
        limit = PassLimit(max_tokens=max(longest, float(training.micro_batch_tokens)))
    has_limit = training.micro_batch_samples is not None or training.micro_batch_tokens != "auto"
    work = run_work(config, sequences, limit, speculation)
    return WorkerRun(costs, work, has_limit, are_apart)
