"""Section `placement`: which devices hold which role, and what the planner is held to."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Final, Literal, cast

from pydantic import Field

from flexrlhf.config.section import (
    Count,
    Flag,
    Positive,
    PositiveFraction,
    Section,
    WholeNumber,
)
from flexrlhf.core.names import GenerationMode, PoolName, Role, StrategyName

_QUOTIENT: Final = r"^[1-9][0-9]*/[1-9][0-9]*$"
Share = PositiveFraction | Annotated[str, Field(pattern=_QUOTIENT, examples=["1/3"])]
"""A part of devices; what no decimal can say is a text such as 1/3."""
Ratio = Annotated[tuple[Share, ...], Field(min_length=1)]
DeviceList = Annotated[tuple[WholeNumber, ...], Field(min_length=1)]
ZeroStage = Literal[0, 1, 2, 3]


def exact_share(share: Share) -> Fraction:
    """Returns a share as it is written: 0.3 is 3/10, `1/3` is a third."""
    return Fraction(str(share))


class Pool(Section):
    """One pool of devices."""

    share: Share
    """Of all devices."""
    ratio: Ratio | None = None
    """One share of the pool per role in it; null puts each of them on the whole pool."""


class Pools(Section):
    """Devices divided between training, generation and scoring; the shares sum to 1."""

    train: Share | Pool
    """Where actor and critic are trained."""
    generate: Share | Pool
    """Where the shadow actor generates."""
    score: Share | Pool | None = None
    """Where the frozen models and the shadow critic score; null: where the shadow actor is."""

    @property
    def sections(self) -> dict[PoolName, Pool]:
        """The pools that are given, each as a section."""
        given: dict[PoolName, Share | Pool | None] = {
            "train": self.train,
            "score": self.score,
            "generate": self.generate,
        }
        return {
            name: pool if isinstance(pool, Pool) else Pool(share=pool)
            for name, pool in given.items()
            if pool is not None
        }


class RoleDevices(Section):
    """The devices of each role, by their numbers in the cluster."""

    actor: DeviceList | None = None
    """Trains the policy."""
    critic: DeviceList | None = None
    """Trains the value model."""
    reference: DeviceList | None = None
    """Scores with the policy that KL is measured against."""
    reward: DeviceList | None = None
    """Scores answers."""
    shadow_actor: DeviceList | None = None
    """Generates in place of the actor."""
    shadow_critic: DeviceList | None = None
    """Scores in place of the critic."""


class RoleDegrees(Section):
    """How one role is split, in the keys of `plan --json`; null leaves it to the planner."""

    devices: DeviceList | None = None
    """The same as `placement.devices.ROLE`."""
    tensor_parallel: Count | None = None
    """Devices over which each matrix is split."""
    pipeline_parallel: Count | None = None
    """Devices over which the layers are split."""
    data_parallel: Count | None = None
    """Replicas."""
    zero_stage: ZeroStage | None = None
    """What replicas share: 1 optimiser state, 2 gradients as well, 3 weights as well."""
    offload: Flag | None = None
    """Keep the optimiser's state in host memory."""
    micro_batch_samples: Count | None = None
    """Samples per replica and pass."""
    shard_devices: Count | None = None
    """Consecutive devices inside which ZeRO shards, such as those of a node."""
    generation: GenerationMode | None = None
    """actor, shadow_actor: gather sharded weights once or per token, or reshard them."""
    generation_tensor_parallel: Count | None = None
    """actor, shadow_actor: devices over which a copy is split while it generates."""


class Roles(Section):
    """Degrees that the planner has to keep to, per role."""

    actor: RoleDegrees | None = None
    """The policy in training."""
    critic: RoleDegrees | None = None
    """The value model in training."""
    reference: RoleDegrees | None = None
    """The policy that KL is measured against."""
    reward: RoleDegrees | None = None
    """The model that scores answers."""
    shadow_actor: RoleDegrees | None = None
    """The copy of the actor that generates."""
    shadow_critic: RoleDegrees | None = None
    """The copy of the critic that scores."""


class Placement(Section):
    """What the planner is held to."""

    strategy: Literal["auto", "guideline", "all"] | StrategyName = "auto"
    """How roles go on devices; auto finds the best, all shows each; on one device: colocated."""
    ratio: Ratio | None = None
    """Share of the devices per model: actor, critic, reference, reward, as the algorithm has."""
    pools: Pools | None = None
    """Shares of the devices for training and for generation, on devices of their own."""
    devices: RoleDevices | None = None
    """Devices by number; goes before `ratio` and `pools`."""
    roles: Roles | None = None
    """Degrees of parallelism per role, where they are not left to the planner."""
    memory_fill: PositiveFraction = 0.95
    """Share of a device's memory that a plan may fill."""
    max_p99_iteration_s: Positive | None = None
    """Seconds that 99 of 100 iterations must not exceed; null sets no limit."""
    balance: Literal["tokens", "speed"] = "tokens"
    """What replicas of a role share alike: tokens, or time, by the speed of each at the start."""
    objective: Literal["throughput", "cost"] = "throughput"
    """What the best plan has most of: samples per second, or samples per dollar."""

    @property
    def own_lists(self) -> dict[Role, tuple[int, ...]]:
        """The lists of `devices`, by role."""
        return _given(self.devices)

    @property
    def degrees(self) -> dict[Role, RoleDegrees]:
        """What `roles` gives, by role."""
        return _given(self.roles)

    @property
    def device_lists(self) -> dict[Role, tuple[int, ...]]:
        """The lists of `devices` and, for roles that it leaves out, of `roles`."""
        lists: dict[Role, tuple[int, ...]] = {
            role: degrees.devices
            for role, degrees in self.degrees.items()
            if degrees.devices is not None
        }
        return lists | self.own_lists


def _given(section: RoleDevices | Roles | None) -> dict[Role, Any]:
    values: dict[str, Any] = {} if section is None else dict(section)
    return {cast("Role", role): value for role, value in values.items() if value is not None}
