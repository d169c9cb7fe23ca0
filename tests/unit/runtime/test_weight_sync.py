"""Weights on their way between the workers of a plan, without processes or a network."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.core.names import Role
from flexrlhf.learning.models.parallelise import ParallelModel
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.planning.workflow.graph import Task, Transfer
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.held_roles import HeldRoles
from flexrlhf.runtime.devices.weight_sync import WeightSync

ADDRESSES = ("trainer", "shadow0", "shadow1", "shadow2")
PLACEMENT: dict[Role, RolePlacement] = {
    "actor": RolePlacement((0,)),
    "critic": RolePlacement((0,)),
    "reference": RolePlacement((0,)),
    "reward": RolePlacement((0,)),
    "shadow_actor": RolePlacement((1, 2, 3), data_parallel=3),
}
DEVICES = DeviceMap(
    Plan(1, "disaggregated", feasible=True, why="", placement=PLACEMENT), algorithm_spec("ppo")
)
TRANSFER = Transfer("weights", 0, "weights", "train", "generate", (), (), ("actor",))


@dataclass
class Workers:
    """A trainer and its replicas, which ask each other directly."""

    syncs: dict[str, WeightSync] = field(default_factory=dict)
    models: dict[str, nn.Module] = field(default_factory=dict)
    sent_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ADDRESSES, 0))

    def ask(self, address, key, query, **limits):
        del limits
        answer = self.syncs[address].handle(key, query)
        self.sent_bytes[address] += sum(t.nbytes for t in answer.tensors.values())
        return answer

    def on_shadows(self, call) -> None:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(call, [self.syncs[address] for address in ADDRESSES[1:]]))

    def train(self, version: int) -> None:
        """One step of the trainer, which then publishes the version."""
        trainer = self.syncs["trainer"]
        trainer.protect("actor")
        with torch.no_grad():
            for parameter in self.models["trainer"].parameters():
                parameter.fill_(version)
        trainer.run(
            Task("publish", version - 1, "sync", "publish", "train", weight_version=version)
        )

    def hold(self, value: float) -> list[bool]:
        return [
            all(bool((parameter == value).all()) for parameter in self.models[address].parameters())
            for address in ADDRESSES[1:]
        ]


@pytest.fixture
def workers() -> Workers:
    workers = Workers()
    for rank, address in enumerate(ADDRESSES):
        model = nn.Sequential(*(nn.Linear(40, 40) for _ in range(12)))
        role = "actor" if rank == 0 else "shadow_actor"
        held = HeldRoles({role: ParallelModel(model)})
        if rank == 0:
            held.trainers["actor"] = None  # pyright: ignore[reportArgumentType] - only its name counts
        sync = WeightSync(DEVICES, rank, ADDRESSES, workers.ask)
        sync.hold(held)
        workers.syncs[address], workers.models[address] = sync, model
    return workers


def install(version: int) -> Task:
    return Task("install", version - 1, "sync", "install", "generate", weight_version=version)


def test_one_copy_leaves_the_trainer_however_many_replicas_there_are(workers):
    copy_bytes = sum(p.nbytes for p in workers.models["trainer"].parameters())
    workers.train(1)
    workers.on_shadows(lambda sync: sync.prefetch(TRANSFER))
    assert not any(workers.hold(1.0))
    workers.on_shadows(lambda sync: sync.run(install(1)))
    assert all(workers.hold(1.0))
    assert copy_bytes <= workers.sent_bytes["trainer"] < 1.1 * copy_bytes  # tensors are aligned
    assert sum(workers.sent_bytes.values()) >= 3 * copy_bytes
    assert min(workers.sent_bytes.values()) > 0


def test_a_replica_keeps_what_it_serves_until_the_iteration_is_finished(workers):
    workers.train(1)
    workers.on_shadows(lambda sync: sync.prefetch(TRANSFER))
    workers.syncs["shadow0"].run(install(1))
    replica = workers.syncs["shadow0"]
    query = {"role": "shadow_actor", "version": 1}
    piece = {**query, "pieces": [["0.bias", [0], [40]]]}

    def served() -> torch.Tensor:
        return replica.handle("weights/pieces", piece).tensors["data"].view(torch.float32)[:40]

    assert (served() == 1.0).all()
    workers.train(2)
    workers.on_shadows(lambda sync: sync.prefetch(replace(TRANSFER, iteration=1)))
    replica.run(install(2))
    assert workers.hold(2.0)[0]
    assert (served() == 1.0).all()  # a copy, since version 1 is not finished
    replica.retire(1)
    assert not replica.handle("weights/catalogue", query).header["versions"]
    assert replica.handle("weights/catalogue", {**query, "version": 2}).header["versions"]


def test_weights_offered_after_a_checkpoint_are_shared_too(workers):
    with torch.no_grad():
        for parameter in workers.models["trainer"].parameters():
            parameter.fill_(7.0)
    for sync in workers.syncs.values():
        sync.offer(3)
    workers.on_shadows(lambda sync: sync.take(3))
    assert all(workers.hold(7.0))


def test_a_worker_of_two_groups_installs_for_each_what_that_group_serves():
    """As with `devices: {shadow_actor: [2, 3], shadow_critic: [3], ...}`: two installs on one."""
    placement: dict[Role, RolePlacement] = {
        "actor": RolePlacement((0,)),
        "critic": RolePlacement((0,)),
        "reference": RolePlacement((2,)),
        "reward": RolePlacement((2,)),
        "shadow_actor": RolePlacement((1, 2), data_parallel=2),
        "shadow_critic": RolePlacement((2,)),
    }
    devices = DeviceMap(
        Plan(1, "disaggregated", feasible=True, why="", placement=placement), algorithm_spec("ppo")
    )
    workers = Workers()
    held: dict[str, dict[Role, nn.Module]] = {
        "trainer": {"actor": nn.Linear(8, 8), "critic": nn.Linear(8, 1)},
        "shadow0": {"shadow_actor": nn.Linear(8, 8)},
        "shadow1": {"shadow_actor": nn.Linear(8, 8), "shadow_critic": nn.Linear(8, 1)},
    }
    for rank, (address, models) in enumerate(held.items()):
        roles = HeldRoles({role: ParallelModel(model) for role, model in models.items()})
        if rank == 0:
            roles.trainers |= dict.fromkeys(models, None)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue] - only names count
        workers.syncs[address] = WeightSync(devices, rank, tuple(held), workers.ask)
        workers.syncs[address].hold(roles)
    for value, model in enumerate(held["trainer"].values(), start=1):
        nn.init.constant_(model.weight, value)
    workers.syncs["trainer"].run(Task("publish", 0, "sync", "publish", "train", weight_version=1))
    both = workers.syncs["shadow1"]
    actor, critic = (held["shadow1"][role].weight for role in ("shadow_actor", "shadow_critic"))
    # The critic's weights are here first, and are no part of what the generating group installs.
    both.prefetch(replace(TRANSFER, target_group="score", roles=("critic",)))
    both.run(replace(install(1), group="score"))
    assert (critic == 2.0).all()
    assert not (actor == 1.0).any()
    generating = [workers.syncs["shadow0"], both]
    with ThreadPoolExecutor(2) as pool:  # they wait for each other's parts
        list(pool.map(lambda sync: sync.prefetch(TRANSFER), generating))
    for sync in generating:
        sync.run(install(1))
    assert (actor == 1.0).all()
    assert (critic == 2.0).all()


def test_a_worker_of_two_groups_publishes_for_each_what_that_group_trained():
    """The critic, trained in another group, may be in the middle of its steps."""
    placement: dict[Role, RolePlacement] = {
        "actor": RolePlacement((0,)),
        "critic": RolePlacement((0, 1), data_parallel=2),
        "reference": RolePlacement((2,)),
        "reward": RolePlacement((2,)),
        "shadow_actor": RolePlacement((1,)),
        "shadow_critic": RolePlacement((2,)),
    }
    devices = DeviceMap(
        Plan(1, "disaggregated", feasible=True, why="", placement=placement), algorithm_spec("ppo")
    )
    models: dict[Role, ParallelModel] = {
        "actor": ParallelModel(nn.Linear(8, 8)),
        "critic": ParallelModel(nn.Linear(8, 1)),
    }
    held = HeldRoles(models)
    held.trainers |= dict.fromkeys(models, None)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue] - only names count
    sync = WeightSync(devices, 0, ("both", "generating", "scoring"), Workers().ask)
    sync.hold(held)

    def offered(role: Role) -> bool:
        query = {"role": role, "version": 1}
        return bool(sync.handle("weights/catalogue", query).header["versions"])

    for role, other in (("actor", "critic"), ("critic", "actor")):
        group = devices.group_of(role)
        assert group != devices.group_of(other)
        assert not offered(role)
        sync.run(Task("publish", 0, "sync", "publish", group, weight_version=1))
        assert offered(role)
