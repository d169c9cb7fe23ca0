"""The roles that one worker holds a part of: models, trainers and the engine that generates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from flexrlhf.config.resolution import settled
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import Role, in_order
from flexrlhf.learning.models.parallelise import ParallelModel
from flexrlhf.learning.models.role_mesh import RoleMesh, ShardDegrees
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.rollout.engines import build_engine
from flexrlhf.learning.rollout.protocol import RolloutEngine
from flexrlhf.learning.training.parallel import ParallelBackend
from flexrlhf.learning.training.step import RoleTrainer
from flexrlhf.runtime.devices.device_map import DeviceMap, trained_by
from flexrlhf.runtime.objectives import objective_of
from flexrlhf.runtime.optimizer_settings import optimizer_settings
from flexrlhf.runtime.role_models import RoleLoader
from flexrlhf.runtime.speculation import speculation_of


@dataclass(frozen=True, slots=True)
class ServedWeights:
    """Weights of one worker that follow those of a trained role."""

    name: str
    """The same on all workers that have such weights, and unlike all others."""
    role: Role
    """That generates or scores with them."""
    ranks: tuple[int, ...]
    """The workers that have such weights."""
    shards: dict[str, Shard]

    @property
    def source(self) -> Role:
        """The role that trains them."""
        return trained_by(self.role)


@dataclass(slots=True)
class HeldRoles:
    """Parts of roles on one worker."""

    models: dict[Role, ParallelModel] = field(default_factory=dict[Role, ParallelModel])
    trainers: dict[Role, RoleTrainer] = field(default_factory=dict[Role, RoleTrainer])
    engine: RolloutEngine | None = None
    """Where the worker takes part in generation."""
    engine_copy: ParallelModel | None = None
    """The engine's own copy of the weights, where it does not read those of its role."""
    engine_mesh: RoleMesh | None = None
    generates_with: ParallelModel | None = None
    """What the engine reads: the model of its role, or `engine_copy`."""

    @property
    def generating(self) -> nn.Module:
        """The module that the engine reads."""
        assert self.generates_with is not None, "this worker takes no part in generation"
        return self.generates_with.module

    def served(self, device_map: DeviceMap) -> list[ServedWeights]:
        """Returns what new weights are written into.

        A shadow that scores may be split otherwise than the engine's copy beside it: both of them
        take over every version.
        """
        served = [
            ServedWeights(role, role, device_map.ranks(role), model.shards())
            for role, model in self.models.items()
            if trained_by(role) != role
        ]
        if self.engine_copy is not None:
            role = device_map.generating
            name, shards = f"{role}/engine", self.engine_copy.shards()
            served.append(ServedWeights(name, role, device_map.ranks(role), shards))
        return served


def hold_roles(
    config: RunConfig,
    spec: AlgorithmSpec,
    device_map: DeviceMap,
    loader: RoleLoader,
    *,
    device: torch.device,
) -> HeldRoles:
    """Loads and splits the roles of one worker; all workers of the run call it together.

    Args:
        config: the run.
        spec: its algorithm.
        device_map: who holds what.
        loader: gives this worker's parts of models.
        device: where they go.
    """
    held = HeldRoles()
    meshes: Mapping[Role, RoleMesh] = {
        role: RoleMesh.create(
            device_map.ranks(role), device_map.degrees(role), device_type=device.type
        )
        for role in in_order(device_map.plan.placement)
    }
    for role, mesh in meshes.items():
        source = trained_by(role)
        if not mesh.is_member or source not in loader.roles:
            continue
        trains = role in spec.trained
        model = loader.load_part(source, mesh, trains=trains)
        held.models[role] = model
        if trains:
            backend = ParallelBackend(
                model, optimizer_settings(role, config), precision=config.training.precision
            )
            held.trainers[role] = RoleTrainer(role, backend, objective_of(role, config, spec))
    if spec.generates:
        _hold_engine(held, config, device_map, loader, device)
    return held


def _hold_engine(
    held: HeldRoles,
    config: RunConfig,
    device_map: DeviceMap,
    loader: RoleLoader,
    device: torch.device,
) -> None:
    """Gives the workers that generate an engine, over the role's own weights where it can."""
    role = device_map.generating
    placement = device_map.plan.placement[role]
    ranks, tensor = device_map.ranks(role), device_map.engine_tensor(role)
    mesh = RoleMesh.create(
        ranks, ShardDegrees(tensor=tensor, data=len(ranks) // tensor), device_type=device.type
    )
    if not mesh.is_member:
        return
    held.engine_mesh = mesh
    model = held.models[role]
    if device_map.has_own_engine(role):
        model = held.engine_copy = loader.load_part("actor", mesh, trains=False)
    held.generates_with = model
    held.engine = build_engine(
        config.rollout.engine,
        model,
        max_sequences=settled(config.rollout.max_sequences),
        shares_weights=True,  # new weights are written into the module itself
        packs_weights=config.rollout.packed_weights,
        captures_steps=config.rollout.cuda_graphs,
        weights=config.rollout.weights,
        kept_prefix_tokens=config.rollout.kept_prefix_tokens,
        speculation=speculation_of(
            config,
            loader.tokenizer,
            device,
            lambda: loader.load("reference", device, trains=False),
            tensor_parallel=tensor,
        ),
        gathers_per_token=placement.generation == "per_token" and model.needs_lockstep,
    )
