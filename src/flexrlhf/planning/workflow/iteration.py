"""Makes the task graph of one iteration from what an algorithm needs and where its roles sit.

The same graph comes out for one group or many: what two tasks of one group hand to each other is an
edge, what crosses groups is a transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from flexrlhf.core.algorithm_specs import AlgorithmSpec, ScoreStep
from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import SHADOWS, Role, kind_of
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.workflow.graph import Graph, Task
from flexrlhf.planning.workflow.graph_builder import GraphBuilder
from flexrlhf.planning.workflow.groups import device_groups
from flexrlhf.planning.workflow.shape import IterationShape


def iteration_graph(
    spec: AlgorithmSpec, plan: Plan, shape: IterationShape, iteration: int
) -> Graph:
    """Returns everything that iteration `iteration`, counted from 0, does under `plan`.

    Scoring of a rollout micro-batch waits for the generation of that micro-batch alone; the barrier
    waits for all scoring; roles train independently of each other. Shadow roles generate and score
    where the plan has them, and new weights reach their groups by `publish`, one transfer per pair
    of groups, and `install`. Where examples are given, the barrier cuts the batch, and training
    waits for the frozen roles that score it.

    Raises:
        PlanError: the plan lacks a role of the algorithm, has a shadow of none, or staleness is
            asked for where the trained weights themselves generate.
    """
    _check_roles(spec, plan)
    if spec.generates and "shadow_actor" not in plan.placement and shape.max_staleness > 0:
        raise PlanError(
            f"weights.max_staleness = {shape.max_staleness}, but under {plan.strategy!r} the actor "
            "generates with the weights that it trains.",
            "Only a placement with a shadow actor can generate with older weights.",
            "Set weights.max_staleness=0 and weights.sync_every=1.",
        )
    return _IterationGraph(spec, plan, shape, iteration).build()


class _IterationGraph:
    """The stages of one iteration, added one after the other."""

    def __init__(
        self, spec: AlgorithmSpec, plan: Plan, shape: IterationShape, iteration: int
    ) -> None:
        groups = device_groups(plan)
        self._spec = spec
        self._shape = shape
        self._iteration = iteration
        self._group_of = {role: group.name for group in groups for role in group.roles}
        self._graph = GraphBuilder(iteration, groups)

    def build(self) -> Graph:
        """Returns the whole graph."""
        batch = [self._add_rollout()] if self._spec.generates else self._add_given_batch()
        last_steps: dict[Role, Task] = {}
        for epoch in range(self._shape.epochs):
            for mini_batch in range(self._shape.mini_batches):
                for role in self._spec.trained:
                    earlier = last_steps.get(role)
                    last_steps[role] = self._add_step(role, epoch, mini_batch, batch, earlier)
        if self._spec.generates and self._shape.has_sync(self._iteration):
            self._add_sync(last_steps)
        return self._graph.graph()

    def _add_rollout(self) -> Task:
        """Generation and scoring by micro-batch, then the barrier, which is returned."""
        generated = [self._add_generation(i) for i in range(self._shape.rollout_micro_batches)]
        scored = [self._add_scoring(samples) for samples in generated]
        barrier = self._graph.add(
            Task(
                name="advantage",
                iteration=self._iteration,
                stage="advantage",
                operation="advantage",
                group=self._group_of["actor"],
                is_barrier=True,
            )
        )
        for samples, scores in zip(generated, scored, strict=True):
            # Where a role of the barrier's group scored, the samples are there already.
            is_there = any(score.group == barrier.group for score in scores)
            results = scores if is_there else [samples, *scores]
            self._graph.hand_over(results, [barrier], f"scores/{samples.micro_batch}")
        return barrier

    def _add_generation(self, micro_batch: int) -> Task:
        role = self._serving("actor")
        return self._graph.add(
            Task(
                name=f"generate/{micro_batch}",
                iteration=self._iteration,
                stage="generate",
                operation="generate",
                group=self._group_of[role],
                role=role,
                micro_batch=micro_batch,
                weight_version=self._version_of(role),
            )
        )

    def _add_scoring(self, samples: Task) -> list[Task]:
        scores = [self._score(step, samples.micro_batch) for step in self._spec.scored]
        self._graph.hand_over([samples], scores, f"samples/{samples.micro_batch}")
        return scores

    def _score(self, step: ScoreStep, micro_batch: int | None) -> Task:
        role = self._serving(step.role)
        work = "mismatched" if step.is_mismatched else step.operation
        return self._graph.add(
            Task(
                name=f"{work}/{role}/{micro_batch}",
                iteration=self._iteration,
                stage="score",
                operation=step.operation,
                group=self._group_of[role],
                role=role,
                micro_batch=micro_batch,
                weight_version=self._version_of(role),
            )
        )

    def _add_given_batch(self) -> list[Task]:
        """The barrier that cuts a batch of given examples, and what scores them.

        Returns:
            What training waits for: the scores, or the barrier where nothing is scored.
        """
        barrier = self._graph.add(
            Task(
                name="prepare",
                iteration=self._iteration,
                stage="train",
                operation="prepare",
                group=self._group_of[self._spec.trained[0]],
                is_barrier=True,
            )
        )
        if not self._spec.scored:
            return [barrier]
        scores: list[Task] = []
        for part in range(self._shape.rollout_micro_batches):
            scored = [self._score(step, part) for step in self._spec.scored]
            self._graph.hand_over([barrier], scored, f"examples/{part}")
            scores += scored
        return scores

    def _add_step(
        self,
        role: Role,
        epoch: int,
        mini_batch: int,
        batch: Sequence[Task],
        earlier: Task | None,
    ) -> Task:
        """One mini-batch of one role: its micro-batches, then the optimiser step it returns."""
        place = f"{role}/epoch{epoch}/mini{mini_batch}"
        step = Task(
            name=f"optimizer_step/{place}",
            iteration=self._iteration,
            stage="train",
            operation="optimizer_step",
            group=self._group_of[role],
            role=role,
            mini_batch=mini_batch,
            epoch=epoch,
            weight_version=self._iteration,
        )
        micro_batches: list[Task] = []
        for index in range(self._shape.micro_batches_per_mini_batch):
            micro_batch = replace(
                step,
                name=f"forward_backward/{place}/micro{index}",
                operation="forward_backward",
                micro_batch=index,
            )
            before = [] if earlier is None else [earlier]
            if self._spec.trains_with_mismatched:
                before = [self._add_mismatched(micro_batch, place, before)]
            self._graph.add(micro_batch, after=before)
            if epoch == 0:  # A later epoch finds its samples where the first one had them.
                label = f"batch/{role}" if kind_of(role) != role else "batch"  # one of several
                self._graph.hand_over(batch, [micro_batch], f"{label}/mini{mini_batch}/{index}")
            micro_batches.append(micro_batch)
        return self._graph.add(step, after=micro_batches)

    def _add_mismatched(self, micro_batch: Task, place: str, before: list[Task]) -> Task:
        """The pass over mismatched answers, with the weights that the micro-batch trains."""
        name = f"mismatched/{place}/micro{micro_batch.micro_batch}"
        return self._graph.add(replace(micro_batch, name=name, operation="forward"), after=before)

    def _add_sync(self, last_steps: Mapping[Role, Task]) -> None:
        """New weights for every group that generates, or scores with a shadow.

        A group that trains installs only when all its training is done, since an engine that
        wakes up needs the memory.
        """
        moved: dict[tuple[str, str], list[Role]] = {}
        steps_before: dict[str, list[Task]] = {}
        targets: list[str] = []
        for role, step in last_steps.items():
            if role == "actor" or self._serving(role) != role:
                target = self._group_of[self._serving(role)]
                targets.append(target)
                if step.group != target:
                    moved.setdefault((step.group, target), []).append(role)
                    steps_before.setdefault(step.group, []).append(step)
        publishes = {
            source: self._sync_task("publish", source, steps)
            for source, steps in steps_before.items()
        }
        installs = {
            target: self._sync_task(
                "install", target, [step for step in last_steps.values() if step.group == target]
            )
            for target in dict.fromkeys(targets)
        }
        for (source, target), roles in moved.items():
            self._graph.move_weights(publishes[source], installs[target], tuple(roles))

    def _sync_task(
        self, operation: Literal["publish", "install"], group: str, after: list[Task]
    ) -> Task:
        task = Task(
            name=f"{operation}/{group}",
            iteration=self._iteration,
            stage="sync",
            operation=operation,
            group=group,
            weight_version=self._iteration + 1,
        )
        return self._graph.add(task, after)

    def _serving(self, role: Role) -> Role:
        """The role that generates or scores for `role`: its shadow, where the plan has one."""
        shadow = SHADOWS.get(role)
        return shadow if shadow in self._group_of else role

    def _version_of(self, role: Role) -> int | None:
        """The version with which `role` generates or scores; None where it is frozen."""
        if role in SHADOWS.values():
            return self._shape.generation_version(self._iteration)
        return self._iteration if role in self._spec.trained else None


def _check_roles(spec: AlgorithmSpec, plan: Plan) -> None:
    missing = [role for role in spec.roles if role not in plan.placement]
    trained_by = {shadow: role for role, shadow in SHADOWS.items()}
    needless = [
        role
        for role in plan.placement
        if role not in spec.roles and not (spec.generates and trained_by.get(role) in spec.trained)
    ]
    if missing or needless:
        raise PlanError(
            f"The plan {plan.strategy!r} does not fit {spec.name!r}: "
            f"without a place: {', '.join(missing) or 'none'}; "
            f"without a use: {', '.join(needless) or 'none'}.",
            f"{spec.name!r} has the roles {', '.join(spec.roles)}, and shadows of those it trains "
            "if it generates.",
            "Make the plan for this algorithm.",
        )
