"""How long the tasks of a plan of several processes take, by the constants of a profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import SHADOWS, Role, kind_of
from flexrlhf.planning.cluster.cluster import Cluster, Node
from flexrlhf.planning.costs.memory import Engine
from flexrlhf.planning.costs.profiled.batches import PassLimit, SequenceLength
from flexrlhf.planning.costs.profiled.wires import REACHED, Wires, wires_of
from flexrlhf.planning.costs.profiled.work import RunWork
from flexrlhf.planning.costs.profiled.worker_costs import WorkerCosts
from flexrlhf.planning.costs.profiled.worker_seconds import WorkerSeconds, dealt
from flexrlhf.planning.placement.placed_role import PlacedRole
from flexrlhf.planning.workflow.adapters import adapter, adapters, narrowing
from flexrlhf.planning.workflow.binding import TaskTime, TransferTime
from flexrlhf.planning.workflow.graph import Graph, Task, Transfer
from flexrlhf.planning.workflow.shape import IterationShape

_TOKEN_BYTES: Final = 8
"""Of a token's number and of what is said of it, as they travel."""
_SHARERS: Final = 16
"""Processes that give each other parts of new weights."""
_ASKED_OF_PEERS: Final = 3
"""Requests to each: what it has, what it takes, and for its part."""
_FIELDS: Final = 6
"""Numbers per token of a sample that is trained on."""

_Key = tuple[str, str, Role | None, int | None, int | None]


class WorkerDurations:
    """Times of one plan, each group by itself.

    On one machine `WorkerCosts.slowdown` says what others beside it cost. On machines of their own
    workers are taken to be all at work, and ways between machines come on top.

    Args:
        spec: of the algorithm.
        roles: that have a model, in their places.
        graph: of any iteration; they are alike.
        shape: into which pieces an iteration is cut.
        work: what an iteration has to get through.
        costs: of the machine.
        peak_bytes: of the fullest device of a task's group.
        machines: that are joined, each a node; None where all processes share one.
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
        machines: Cluster | None = None,
    ) -> None:
        self._spec = spec
        self._placed = {placed.role: placed for placed in roles}
        self._groups = {group.name: group for group in graph.groups}
        self._tasks = {task.name: task for task in graph.tasks}
        self._shape = shape
        self._work = work
        self._costs = costs
        self._peak_bytes = peak_bytes
        self._machines = machines
        longest = max(sequence.tokens for sequence in work.sequences)
        most = work.limit.max_tokens or (work.limit.max_items or 1) * longest
        self._scored = PassLimit(max_tokens=most)  # passes without gradients are cut by tokens
        self._seconds: dict[Role, WorkerSeconds] = {p.role: self._of(p) for p in roles}
        self._here: dict[Role, WorkerSeconds] = {
            p.role: replace(self._of(p), wires=Wires()) for p in roles
        }
        """The same as if one machine had all of them."""
        self._by_speed = {p.role for p in roles if p.is_shared_by_speed}
        self._times: dict[_Key, TaskTime] = {}
        self.links: Mapping[str, float] = dict[str, float]()
        if machines is not None:
            self.links = adapters(machines, REACHED)

    def task_time(self, task: Task) -> TaskTime:
        """Returns how long `task` takes if only its group is at work; every iteration is alike."""
        key = (task.operation, task.group, task.role, task.micro_batch, task.mini_batch)
        if key not in self._times:
            devices = self._groups[task.group].devices
            work_s = self._work_s(task, self._here)
            is_shared = task.role in self._by_speed and task.operation != "optimizer_step"
            computed_s = work_s * self._slowdown(devices, is_shared_by_speed=is_shared)
            handed_s = self._costs.task_s(len(devices)) + self._asked_s(task)
            handed_s += self._work_s(task, self._seconds) - work_s
            self._times[key] = TaskTime(computed_s, handed_s, self._peak_bytes(task))
        return self._times[key]

    def transfer_time(self, transfer: Transfer) -> TransferTime:
        """Returns what `transfer` takes; on one machine its bytes cost little beside the asking."""
        ranks = len(self._groups[transfer.target_group].devices)
        begun_s = self._costs.task_s(ranks)
        if transfer.kind == "weights":
            handed_s, num_bytes = self._pull_s(transfer), self._pulled_bytes(transfer)
        else:
            handed_s, num_bytes = self._brought_s(transfer), self._brought_bytes(transfer)
        return self._on_its_way(transfer, begun_s + handed_s, num_bytes)

    def _on_its_way(self, transfer: Transfer, handed_s: float, num_bytes: float) -> TransferTime:
        """Returns the time of a transfer of which each target device takes so many bytes."""
        if self._machines is None:
            return TransferTime(0.0, latency_s=handed_s)
        machines = self._machines
        sources = machines.nodes_of(self._groups[transfer.source_group].devices)
        takers = self._groups[transfer.target_group].devices
        targets = machines.nodes_of(takers)
        apart = [node for node in targets if sources != (node,)]
        if not apart:
            return TransferTime(0.0, latency_s=handed_s)
        fullest = max(_held(node, takers) for node in apart)
        copies = sum(_held(node, takers) for node in apart)
        if transfer.kind == "weights":
            copies = 1  # whoever has taken a part gives it to the others
        given = copies / len(sources)
        narrow = narrowing(machines, sources[0], apart[-1], REACHED)
        names = {adapter(node.index) for node in (*sources, *apart)}
        latency_s = 2 * machines.link_between(sources[0], apart[-1]).latency_s
        carried = num_bytes * max(fullest, given) * narrow
        return TransferTime(carried, tuple(sorted(names)), handed_s + latency_s)

    def _of(self, placed: PlacedRole) -> WorkerSeconds:
        engine = placed.engine
        return WorkerSeconds(
            placed.model,
            placed.layout,
            len(placed.devices),
            1 if engine is None else engine.tensor,
            engine is not None and engine.mode == "per_token",
            self._costs,
            self._wires(placed),
            reads_ends=kind_of(placed.role) == "reward",
        )

    def _wires(self, placed: PlacedRole) -> Wires:
        if self._machines is None:
            return Wires()
        tensor = 1 if placed.engine is None else placed.engine.tensor
        return wires_of(self._machines, placed.devices, placed.layout, tensor)

    def _slowdown(self, devices: Sequence[int], *, is_shared_by_speed: bool = False) -> float:
        """Returns how many times as long work takes as in the process that was measured.

        Args:
            devices: that share it.
            is_shared_by_speed: whether the faster get more of it; else the slowest counts.
        """
        if self._machines is None:
            return self._costs.slowdown(len(devices))
        times = {
            device: self._costs.slowdown(len(node.devices)) / self._costs.speed(node.device)
            for node in self._machines.nodes_of(devices)
            for device in set(devices).intersection(node.devices)
        }
        if is_shared_by_speed:
            return len(times) / sum(1 / time for time in times.values())
        return max(times.values())

    def _work_s(self, task: Task, of_roles: Mapping[Role, WorkerSeconds]) -> float:
        """Seconds of computing and of the role's own collectives."""
        if task.operation == "advantage":
            return len(self._work.sequences) * self._costs.costs.barrier_s
        if task.operation == "install":
            return self._install_s(task)
        seconds = of_roles.get(task.role) if task.role else None
        if seconds is None:
            return 0.0
        return self._role_s(task, seconds)

    def _role_s(self, task: Task, seconds: WorkerSeconds) -> float:
        work = self._work
        match task.operation:
            case "generate" if self._generating.streams:
                return work.generated * self._streamed[task.micro_batch or 0][1]
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
        number = task.micro_batch or 0
        if self._spec.generates and self._generating.streams:
            return self._streamed[number][0]
        return self._work.part(number, self._shape.rollout_micro_batches)

    @cached_property
    def _streamed(self) -> list[tuple[list[SequenceLength], float]]:
        """The parts of a rollout as their answers end, and the seconds in which they do."""
        parts = self._shape.rollout_micro_batches
        begun = [self._work.part(number, parts) for number in range(parts)]
        return self._seconds[self._generating.role].stream(begun, self._work)

    def _mini_batch(self, task: Task) -> Sequence[SequenceLength]:
        return self._work.mini_batch(task.mini_batch or 0, self._shape.mini_batches)

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
                peers = min(len(shadow.devices), _SHARERS) - 1
                asked_s = _ASKED_OF_PEERS * peers * self._costs.parcels.request_s
                seconds += self._weights_s(shadow, share) + asked_s
        pulling = self._groups[transfer.target_group].devices
        if self._machines is not None:
            return seconds * self._slowdown(pulling)
        return seconds * self._costs.slowdown(2 * len(pulling))

    def _pulled_bytes(self, transfer: Transfer) -> float:
        """Bytes that each process of the target takes."""
        shadows = (self._placed.get(SHADOWS.get(role, role)) for role in transfer.roles)
        return sum(s.model.weight_bytes / s.layout.weight_parts for s in shadows if s is not None)

    def _asked_s(self, task: Task) -> float:
        """What the processes of a task ask of others before they work."""
        if task.operation == "advantage":
            parts = self._shape.rollout_micro_batches
            asked = len(self._work.sequences) * self._others(self._num_generators, task)
            scorers = sum(self._num_scorers(step.role) for step in self._spec.scored)
            requests = parts * (2 * (self._num_generators - 1) + scorers)
            return self._questions_s(task, requests, asked)
        if task.stage != "score" or task.operation == "forward" or not self._spec.generates:
            return 0.0
        requests = 2 * max(0, self._num_generators - 1)
        moved = 0.0
        if task.operation == self._spec.scored[0].operation:
            share = len(self._part(task)) / max(1, self._replicas(task.role))
            moved = share * self._others(self._num_generators, task)
        return self._questions_s(task, requests, moved)

    def _questions_s(self, task: Task, requests: int, samples: float) -> float:
        """Seconds in which each process of a task asks the others for samples."""
        seconds = requests * self._costs.parcels.request_s + samples * self._sample_s
        if self._machines is None:
            return seconds
        devices = self._groups[task.group].devices
        nodes = self._machines.nodes_of(devices)
        if len(nodes) == 1:
            return seconds
        link = self._machines.link_between(nodes[0], nodes[-1])
        fullest = max(_held(node, devices) for node in nodes)
        num_bytes = samples * self._sample_bytes * fullest
        return seconds + 2 * requests * link.latency_s + num_bytes / link.rate(REACHED)

    def _brought_s(self, transfer: Transfer) -> float:
        """Samples or scores that a group takes over."""
        target = self._tasks[transfer.targets[0]]
        requests = 2 * self._num_generators * len(transfer.targets)
        if target.operation == "forward_backward":
            requests = 1
        seconds = requests * self._costs.parcels.request_s
        return seconds + self._brought(transfer) * self._sample_s

    def _brought_bytes(self, transfer: Transfer) -> float:
        return self._brought(transfer) * self._sample_bytes

    def _brought(self, transfer: Transfer) -> int:
        """Samples that each process of the target takes over, or whose scores it does."""
        source = self._tasks[transfer.sources[0]]
        target = self._tasks[transfer.targets[0]]
        if target.operation == "forward_backward":
            is_first = target.micro_batch == 0 and target.mini_batch == 0
            return len(self._work.sequences) if is_first else 0
        if target.operation == "advantage":
            return len(self._part(source))
        shares = dealt(self._part(source), max(1, self._replicas(target.role)))
        return max(len(share) for share in shares)

    def _others(self, holders: int, task: Task) -> float:
        """The part of samples that lies with other processes of the group, shared evenly."""
        generates = self._generating.role in self._groups[task.group].roles
        return 1 - 1 / holders if generates and holders > 1 else 0.0

    @property
    def _sample_s(self) -> float:
        parcels = self._costs.parcels
        return parcels.sample_s + self._sample_bytes * parcels.byte_s

    @property
    def _sample_bytes(self) -> float:
        tokens = sum(s.tokens for s in self._work.sequences) / len(self._work.sequences)
        return tokens * _TOKEN_BYTES * _FIELDS

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


def _held(node: Node, devices: Sequence[int]) -> int:
    """Returns how many of the devices are on a node."""
    return sum(device in node.devices for device in devices)
