"""A process that measures what it costs to be one of several: plain, without Ray inside."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from flexrlhf.learning.data.collation import COLLATE
from flexrlhf.learning.models.parallelise import parallelise
from flexrlhf.learning.models.role_mesh import RoleMesh, ShardDegrees
from flexrlhf.learning.models.shards import whole_shards
from flexrlhf.learning.rollout.native import NativeEngine
from flexrlhf.learning.rollout.protocol import Request, Sampling
from flexrlhf.learning.scoring.passes import score_logprobs
from flexrlhf.learning.training.memory import share_one_heap
from flexrlhf.learning.training.optimizer import OptimizerSettings
from flexrlhf.learning.training.parallel import ParallelBackend
from flexrlhf.learning.training.step import RoleTrainer
from flexrlhf.learning.transport.fetching import fetch
from flexrlhf.learning.transport.parcel import Parcel
from flexrlhf.learning.transport.samples import samples_from_parcel, samples_to_parcel
from flexrlhf.learning.transport.server import LOOPBACK, ParcelServer
from flexrlhf.learning.weights.pulling import pull
from flexrlhf.learning.weights.store import WeightStore
from flexrlhf.planning.costs.profiled.constants import (
    MemoryConstants,
    ProfiledCosts,
    WholeCost,
)
from flexrlhf.runtime.devices.process_groups import join_world, open_store
from flexrlhf.runtime.devices.work_order import Meeting
from flexrlhf.runtime.profiling import subjects
from flexrlhf.runtime.profiling.device_costs import device_costs
from flexrlhf.runtime.profiling.timing import Work, median_s, seconds_of
from flexrlhf.runtime.profiling.whole_costs import whole_cost

_SECRET: Final = "profile"
_NARROW, _WIDE = 64, 512
_CUT_WIDTH: Final = 256
"""With heads enough for four processes."""
_SHALLOW, _DEEP = 2, 10
_SUMS_OF_LAYER: Final = 2
_SEQUENCES, _TOKENS = 8, 16
_MEET_S: Final = 120.0
_SUM_NUMBERS: Final = 2**22
_PARCEL_NUMBERS: Final = 2**22
_FLOAT_BYTES: Final = 4
_CPU: Final = torch.device("cpu")


class WorkerProbe:
    """One of several processes with one thread each.

    Args:
        rank: its number.
    """

    def __init__(self, rank: int) -> None:
        share_one_heap()
        torch.set_num_threads(1)
        self._rank = rank
        self._server = ParcelServer(None, _SECRET)
        self._weights = WeightStore()
        self._model = subjects.llama(_WIDE, _SHALLOW, _CPU)
        self._offered = Parcel({}, {"numbers": torch.zeros(_PARCEL_NUMBERS)})
        self._server.offer("numbers", lambda key, _: self._offered if "all" in key else Parcel({}))
        self._server.offer("weights", self._weights.handle)
        self._weights.publish("actor", 0, whole_shards(self._model))

    def address(self) -> str:
        """Returns where this process gives parcels."""
        return self._server.address

    def open_store(self, ranks: int) -> int:
        """Opens the store in which the processes meet and returns its port."""
        return open_store(LOOPBACK, ranks)

    def join(self, ranks: int, port: int) -> None:
        """Meets the others."""
        meeting = Meeting((self.address(),) * ranks, LOOPBACK, port)
        join_world(meeting, self._rank, deadline_s=_MEET_S)

    def nothing(self) -> None:
        """Does nothing: what is left is the way here and back."""

    def costs(self, memory: MemoryConstants) -> ProfiledCosts:
        """Returns the constants of this process, as it is beside what others do."""
        return device_costs(_CPU, memory, lambda _: None)

    def whole_cost(self, costs: ProfiledCosts, ranks: int) -> WholeCost | None:
        """Returns what `ranks` processes take for whole pieces; None for others.

        Args:
            costs: the constants of one of them.
            ranks: processes that begin each piece together and wait for the slowest.
        """
        group = RoleMesh.create(range(ranks), ShardDegrees(data=ranks)).group
        if self._rank >= ranks:
            return None
        return whole_cost(costs, _CPU, lambda: dist.barrier(group=group))

    def piece_s(self, until_s: float) -> float:
        """Returns the mean seconds of a mixed piece of work, over and over until a moment.

        The mean, since a piece is shorter than the turns in which processes share a core.

        Args:
            until_s: seconds since the epoch.
        """
        work, start_s, pieces = self._mixed(), time.time(), 0
        while time.time() < until_s:
            work()
            pieces += 1
        return (time.time() - start_s) / max(1, pieces)

    def group_costs(self, ranks: int) -> Mapping[str, float]:
        """Returns the seconds of what `ranks` processes do together; others only make groups."""
        meshes = {
            stage: RoleMesh.create(range(ranks), ShardDegrees(data=ranks, zero_stage=stage))
            for stage in (0, 1, 2, 3)
        }
        cut = RoleMesh.create(range(ranks), ShardDegrees(tensor=ranks))
        if self._rank >= ranks:
            return {}
        group = meshes[0].group
        tiny, large = torch.zeros(1), torch.zeros(_SUM_NUMBERS)
        num_bytes = large.numel() * _FLOAT_BYTES
        message_s = self._turns_s(lambda: dist.all_reduce(tiny, group=group), 40)
        sum_s = self._turns_s(lambda: dist.all_reduce(large, group=group), 5)
        share_s = self._turns_s(lambda: _share(large, ranks, meshes[1]), 5)
        found = {
            "message_s": max(message_s, self._sum_in_pass_s(meshes[0], cut)),
            "step_s": self._step_extra_s(meshes[0]),
            "sum_byte_s": max(0.0, sum_s - message_s) / num_bytes,
            "share_byte_s": max(0.0, share_s - 2 * ranks * message_s) / num_bytes,
        }
        for name, stage, trains in (
            ("gathers", 3, False),
            ("trains", 3, True),
            ("reduces", 2, True),
        ):
            layer_s, byte_s = self._sharded(meshes[0], meshes[stage], trains=trains)
            found |= {f"{name}_layer_s": layer_s, f"{name}_byte_s": byte_s}
        return found

    def parcel_costs(self, address: str) -> Mapping[str, float]:
        """Returns the seconds of asking the process at `address`."""

        def ask(key: str) -> Parcel:
            return fetch(address, _SECRET, key, {}, deadline_s=_MEET_S)

        request_s = median_s(lambda: ask("numbers/none"))
        whole_s = median_s(lambda: ask("numbers/all"), budget_s=1.0)
        rows = subjects.samples(64, 64)
        prompts = {row.sample_id: row.prompt for row in rows}
        both_s = median_s(lambda: samples_from_parcel(samples_to_parcel(rows), prompts.__getitem__))
        return {
            "request_s": request_s,
            "byte_s": max(0.0, whole_s - request_s) / (_PARCEL_NUMBERS * _FLOAT_BYTES),
            "sample_s": both_s / len(rows),
        }

    def weight_costs(self, address: str) -> Mapping[str, float]:
        """Returns the seconds of pulling a version from the process at `address`."""
        target = whole_shards(subjects.llama(_WIDE, _SHALLOW, _CPU))
        one = {name: shard for name, shard in target.items() if shard.tensor.numel() == _WIDE}
        first = dict(list(one.items())[:1])
        num_bytes = sum(shard.tensor.nbytes for shard in target.values())

        def bring(shards: Mapping[str, Any]) -> Any:
            return pull("actor", 0, shards, [address], _asking)

        first_s, small_s = median_s(lambda: bring(first)), median_s(lambda: bring(one))
        whole_s = median_s(lambda: bring(target), budget_s=2.0)
        taken = [bring(target) for _ in range(5)]
        install_s = min(seconds_of(staged.install) for staged in taken)
        tensor_s = max(0.0, (small_s - first_s) / max(1, len(one) - 1))
        return {
            "pull_s": max(0.0, first_s - tensor_s),
            "tensor_s": tensor_s,
            "byte_s": max(0.0, whole_s - first_s - tensor_s * (len(target) - 1)) / num_bytes,
            "install_byte_s": install_s / num_bytes,
        }

    def _mixed(self) -> Work:
        model = subjects.llama(256, _SHALLOW, _CPU)
        rows = subjects.samples(_SEQUENCES, 4 * _TOKENS)
        train = self._training(subjects.trainer(model))
        engine = NativeEngine(model)
        requests = [Request((1, 2, 3), (number,)) for number in range(_SEQUENCES)]
        sampling = Sampling(max_new_tokens=4)

        def work() -> None:
            score_logprobs(model, rows, temperature=1.0, max_tokens=4 * _SEQUENCES * _TOKENS)
            engine.generate(requests, sampling)
            train()

        return work

    def _sharded(self, whole: RoleMesh, sharded: RoleMesh, *, trains: bool) -> tuple[float, float]:
        """Returns what a pass takes longer per layer, and per byte of weights."""

        def extra_s(width: int, layers: int) -> tuple[float, int]:
            plain = self._pass_s(width, layers, whole, trains=trains)
            split = self._pass_s(width, layers, sharded, trains=trains)
            params = layers * subjects.layer_params(width) + width * subjects.VOCABULARY
            return max(0.0, split - plain), params * _FLOAT_BYTES

        shallow_s, _ = extra_s(_NARROW, _SHALLOW)
        deep_s, _ = extra_s(_NARROW, _DEEP)
        wide_s, wide_bytes = extra_s(_WIDE, _SHALLOW)
        layer_s = max(0.0, deep_s - shallow_s) / (_DEEP - _SHALLOW)
        return layer_s, max(0.0, wide_s - shallow_s) / wide_bytes

    def _sum_in_pass_s(self, whole: RoleMesh, cut: RoleMesh) -> float:
        """Returns the seconds of a sum over the processes of a replica, between its products.

        There each waits for the slowest of all, which it does not where sum follows sum.
        """
        deep_s, shallow_s = (
            self._pass_s(_CUT_WIDTH, layers, cut, trains=False)
            - self._pass_s(_CUT_WIDTH, layers, whole, trains=False)
            for layers in (_DEEP, _SHALLOW)
        )
        return (deep_s - shallow_s) / ((_DEEP - _SHALLOW) * _SUMS_OF_LAYER)

    def _pass_s(self, width: int, layers: int, mesh: RoleMesh, *, trains: bool) -> float:
        model = parallelise(subjects.llama(width, layers, _CPU), mesh, trains=trains)
        if not trains:
            rows = subjects.samples(_SEQUENCES, _TOKENS)
            tokens = _SEQUENCES * _TOKENS
            return self._turns_s(
                lambda: score_logprobs(model, rows, temperature=1.0, max_tokens=tokens), 7
            )
        settings = OptimizerSettings(learning_rate=0.0, total_steps=1)
        role = RoleTrainer("actor", ParallelBackend(model, settings), subjects.OBJECTIVE)
        return self._turns_s(self._training(role), 7)

    def _training(self, role: RoleTrainer) -> Work:
        rows = subjects.samples(_SEQUENCES, _TOKENS)

        def accumulate() -> None:
            batch = COLLATE["prompts"](rows, role.objective.fields)
            role.accumulate(batch.to(role.backend.device), subjects.counts(_SEQUENCES))

        return accumulate

    def _step_extra_s(self, mesh: RoleMesh) -> float:
        settings = OptimizerSettings(learning_rate=0.0, total_steps=1)
        model: nn.Module = subjects.llama(_NARROW, _SHALLOW, _CPU)
        parallel = parallelise(model, mesh, trains=True)
        together = RoleTrainer("actor", ParallelBackend(parallel, settings), subjects.OBJECTIVE)
        alone = subjects.trainer(subjects.llama(_NARROW, _SHALLOW, _CPU))
        times: list[float] = []
        for role in (alone, together):
            accumulate = self._training(role)

            def step(role: RoleTrainer = role) -> None:
                role.step(subjects.counts(_SEQUENCES))

            times.append(self._turns_s(step, 15, before=accumulate))
        return max(0.0, times[1] - times[0])

    def _turns_s(self, work: Work, turns: int, before: Callable[[], object] | None = None) -> float:
        """Returns the median of so many turns, which all processes make together."""
        taken: list[float] = []
        for _ in range(turns + 2):
            if before is not None:
                before()
            taken.append(seconds_of(work))
        taken = sorted(taken[2:])
        return taken[len(taken) // 2]


def _asking(address: str, key: str, query: Mapping[str, Any]) -> Parcel:
    return fetch(address, _SECRET, key, query, deadline_s=_MEET_S)


def _share(numbers: torch.Tensor, ranks: int, mesh: RoleMesh) -> None:
    """Adds rows up where they are kept, and gives every process the new ones: a ZeRO-1 step."""
    for shard, rows in enumerate(numbers.chunk(ranks)):
        dist.reduce(rows, group=mesh.shard_group, group_dst=shard)
    for shard, rows in enumerate(numbers.chunk(ranks)):
        dist.broadcast(rows, group=mesh.shard_group, group_src=shard)
