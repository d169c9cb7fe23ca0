"""How long the tasks of a plan of several processes take, by the constants of a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import SHADOWS, Role
from flexrlhf.planning.costs.memory import Engine
from flexrlhf.planning.costs.profiled.batches import PassLimit, SequenceLength
from flexrlhf.planning.costs.profiled.work import RunWork
from flexrlhf.planning.costs.profiled.worker_costs import WorkerCosts
from flexrlhf.planning.costs.profiled.worker_seconds import WorkerSeconds, dealt
from flexrlhf.planning.placement.placed_role import PlacedRole
from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.shape import IterationShape

_TOKEN_BYTES: Final = 8
"""Of a token's number and of what is said of it, as they travel."""
_FIELDS: Final = 6
"""Numbers per token of a sample that is trained on."""

_Key = tuple[str, str, Role | None, int | None, int | None]


class WorkerDurations:
    """Times of one plan, each group by itself; `WorkerCosts.slowdown` says what others beside cost.

    Args:
        spec: of the algorithm.
        roles: that have a model, in their places.
        graph: of any iteration; they are alike.
        shape: into which pieces an iteration is cut.
        work: what an iteration has to get through.
        costs: of the machine.
        peak_bytes: of the fullest device of a task's group.
    """

    def __init__(
        self,
        spec: AlgorithmSpec,
        roles: Sequence[PlacedRole],
        *,
        graph: Graph,
        shape: IterationShape,
        work: RunWork,
        costs: WorkerCosts,
        peak_bytes: Callable[[Task], int],
    ) -> None:
        self._spec = spec
        self._placed = {placed.role: placed for placed in roles}
        self._groups = {group.name: group for group in graph.groups}
        self._tasks = {task.name: task for task in graph.tasks}
        self._shape = shape
        self._work = work
        self._costs = costs
        self._peak_bytes = peak_bytes
        longest = max(sequence.tokens for sequence in work.sequences)
        most = work.limit.max_tokens or (work.limit.max_items or 1) * longest
        self._scored = PassLimit(max_tokens=most)  # passes without gradients are cut by tokens
        self._seconds = {placed.role: self._of(placed) for placed in roles}
        self._times: dict[_Key, TaskTime] = {}
        self.links: Mapping[str, float] = {}

    def task_time(self, task: Task) -> TaskTime:
        """Returns how long `task` takes if only its group is at work; every iteration is alike."""
        key = (task.operation, task.group, task.role, task.micro_batch, task.mini_batch)
        if key not in self._times:
            ranks = len(self._groups[task.group].devices)
            computed_s = self._work_s(task) * self._costs.slowdown(ranks)
            handed_s = self._costs.task_s(ranks) + self._asked_s(task)
            self._times[key] = TaskTime(computed_s, handed_s, self._peak_bytes(task))
        return self._times[key]

    def transfer_time(self, transfer: Transfer) -> TransferTime:
        """Returns what `transfer` takes; its bytes are few beside what asking for them costs."""
        ranks = len(self._groups[transfer.target_group].devices)
        begun_s = self._costs.task_s(ranks)
        if transfer.kind == "weights":
            return TransferTime(0.0, latency_s=begun_s + self._pull_s(transfer))
        return TransferTime(0.0, latency_s=begun_s + self._brought_s(transfer))

    def _of(self, placed: PlacedRole) -> WorkerSeconds:
        engine = placed.engine
        return WorkerSeconds(
            placed.model,
            placed.layout,
            len(placed.devices),
            1 if engine is None else engine.tensor,
            engine is not None and engine.mode == "per_token",
            self._costs,
        )

    def _work_s(self, task: Task) -> float:
        """Seconds of computing and of the role's own collectives."""
        if task.operation == "advantage":
            return len(self._work.sequences) * self._costs.costs.barrier_s
        if task.operation == "install":
            return self._install_s(task)
        seconds = self._seconds.get(task.role) if task.role else None
        if seconds is None:
            return 0.0
        return self._role_s(task, seconds)

    def _role_s(self, task: Task, seconds: WorkerSeconds) -> float:
        work = self._work
        match task.operation:
            case "generate":
                return work.generated * seconds.generate(self._part(task), work)
            case "forward_backward":
                return seconds.train(self._mini_batch(task), task.micro_batch or 0, work)
            case "optimizer_step":
                return seconds.update()
            case "forward":
                return seconds.score(self._mini_batch(task), self._scored, work)
            case _:
                repeated = work.generated if task.operation == "rewards" else 1.0
                return repeated * seconds.score(self._part(task), self._scored, work)

    def _part(self, task: Task) -> Sequence[SequenceLength]:
        parts = self._shape.rollout_micro_batches
        return self._work.sequences[(task.micro_batch or 0) :: parts]

    def _mini_batch(self, task: Task) -> Sequence[SequenceLength]:
        return self._work.sequences[(task.mini_batch or 0) :: self._shape.mini_batches]

    def _install_s(self, task: Task) -> float:
        """What new weights are written into: shadows, and engines that have a copy of their own."""
        rate = self._costs.weights.install_byte_s
        installed = 0.0
        for role in self._groups[task.group].roles:
            placed = self._placed.get(role)
            if placed is None:
                continue
            share = placed.model.weight_bytes / placed.layout.weight_parts
            if role in SHADOWS.values():
                installed += share * rate
            if placed.engine is not None and self._has_own_copy(placed, placed.engine):
                part = placed.model.weight_bytes / placed.engine.tensor
                installed += part * rate + (self._weights_s(placed, part) if role == "actor" else 0)
        return installed

    @staticmethod
    def _has_own_copy(placed: PlacedRole, engine: Engine) -> bool:
        """Whether the engine's weights are cut otherwise than the role's, which it then pulls."""
        layout = placed.layout
        return engine.tensor != layout.tensor or layout.pipeline > 1

    def _weights_s(self, placed: PlacedRole, num_bytes: float) -> float:
        costs = self._costs.weights
        tensors = placed.model.shape.num_tensors + 2 * placed.model.shape.layers
        return costs.pull_s + tensors * costs.tensor_s + num_bytes * costs.byte_s

    def _pull_s(self, transfer: Transfer) -> float:
        """All of the target pull at once, from processes that share one machine's cores."""
        seconds = 0.0
        for role in transfer.roles:
            shadow = self._placed.get(SHADOWS.get(role, role))
            if shadow is not None:
                share = shadow.model.weight_bytes / shadow.layout.weight_parts
                seconds += self._weights_s(shadow, share)
        pulling = len(self._groups[transfer.target_group].devices)
        return seconds * self._costs.slowdown(2 * pulling)

    def _asked_s(self, task: Task) -> float:
        """What the processes of a task ask of others before they work."""
        if task.operation == "advantage":
            parts = self._shape.rollout_micro_batches
            asked = len(self._work.sequences) * self._others(self._num_generators, task)
            scorers = sum(self._num_scorers(step.role) for step in self._spec.scored)
            requests = parts * (2 * (self._num_generators - 1) + scorers)
            return requests * self._costs.parcels.request_s + asked * self._sample_s
        if task.stage != "score" or task.operation == "forward" or not self._spec.generates:
            return 0.0
        requests = 2 * max(0, self._num_generators - 1)
        moved = 0.0
        if task.operation == self._spec.scored[0].operation:
            share = len(self._part(task)) / max(1, self._replicas(task.role))
            moved = share * self._others(self._num_generators, task)
        return requests * self._costs.parcels.request_s + moved * self._sample_s

    def _brought_s(self, transfer: Transfer) -> float:
        """Samples or scores that a group takes over."""
        source = self._tasks[transfer.sources[0]]
        target = self._tasks[transfer.targets[0]]
        parcels = self._costs.parcels
        if target.operation == "forward_backward":
            is_first = target.micro_batch == 0 and target.mini_batch == 0
            samples = len(self._work.sequences) if is_first else 0
            return parcels.request_s + samples * self._sample_s
        count = len(self._part(source))
        if target.operation != "advantage":
            count = max(
                len(share)
                for share in dealt(self._part(source), max(1, self._replicas(target.role)))
            )
        requests = 2 * self._num_generators * len(transfer.targets)
        return requests * parcels.request_s + count * self._sample_s

    def _others(self, holders: int, task: Task) -> float:
        """The part of samples that lies with other processes of the group, shared evenly."""
        generates = self._generating.role in self._groups[task.group].roles
        return 1 - 1 / holders if generates and holders > 1 else 0.0

    @property
    def _sample_s(self) -> float:
        tokens = sum(s.tokens for s in self._work.sequences) / len(self._work.sequences)
        num_bytes = tokens * _TOKEN_BYTES * _FIELDS
        return self._costs.parcels.sample_s + num_bytes * self._costs.parcels.byte_s

    @property
    def _generating(self) -> PlacedRole:
        return self._placed.get("shadow_actor") or self._placed["actor"]

    @property
    def _num_generators(self) -> int:
        return max(1, self._generating.engine_replicas)

    def _num_scorers(self, role: Role) -> int:
        shadow = SHADOWS.get(role)
        return self._replicas(shadow if shadow in self._placed else role)

    def _replicas(self, role: Role | None) -> int:
        placed = self._placed.get(role) if role else None
        return 1 if placed is None else placed.layout.data
