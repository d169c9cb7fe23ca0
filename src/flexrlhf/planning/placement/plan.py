"""The plan: which role sits on which devices, how it is split there, and why.

Everything else reads this value; nothing changes it. Its JSON form is what `plan --json` prints and
what the run folder keeps as `plan.json`. A key that does not apply is absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypedDict

from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import (
    GENERATION_MODES,
    ROLES,
    STRATEGIES,
    GenerationMode,
    Role,
    StrategyName,
    kind_of,
)
from flexrlhf.planning.placement.json_form import check_keys, check_names
from flexrlhf.planning.placement.prediction import Prediction

ChosenBy = Literal["auto", "guideline", "user"]
Bound = Literal["compute", "memory", "communication", "scheduling"]

_ZERO_STAGES: Final = range(4)


@dataclass(frozen=True, slots=True)
class RolePlacement:
    """The devices of one role and how its model is split over them."""

    devices: tuple[int, ...]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    """Replicas; the three degrees multiply to the number of devices."""
    zero_stage: int = 0
    """0 replicates everything; 1, 2, 3 shard optimiser state, gradients, weights as well."""
    offload: bool = False
    """Optimiser state rests in host memory."""
    micro_batch_samples: int | None = None
    """Samples per device and micro-batch; None where a token budget cuts micro-batches."""
    shard_devices: int | None = None
    """ZeRO shards inside blocks of this many consecutive devices; None: over all replicas."""
    generation: GenerationMode | None = None
    """Of a role that generates; None keeps its layout, gathered once where ZeRO shards it."""
    generation_tensor_parallel: int | None = None
    """Devices over which a copy is split while it generates; None: `tensor_parallel`."""

    expert_parallel: int | None = None
    """Devices of a pipeline stage that divide the routed experts of each layer among them; None:
    experts are split and sharded as all else is."""

    def __post_init__(self) -> None:
        degrees = (self.tensor_parallel, self.pipeline_parallel, self.data_parallel)
        width = self.tensor_parallel * self.pipeline_parallel * self.data_parallel
        if len(set(self.devices)) != len(self.devices):
            raise PlanError(
                f"A role is placed on devices {list(self.devices)}.",
                "Each device stands there once.",
                "Remove the repetition.",
            )
        if min(degrees) < 1 or width != len(self.devices):
            raise PlanError(
                f"tensor_parallel {degrees[0]} x pipeline_parallel {degrees[1]} x data_parallel "
                f"{degrees[2]} does not make {len(self.devices)} devices.",
                "The degrees, each at least 1, multiply to the number of the role's devices.",
                "Change a degree, or the list of devices.",
            )
        if self.zero_stage not in _ZERO_STAGES:
            raise PlanError(
                f"zero_stage = {self.zero_stage}.", "It is 0, 1, 2 or 3.", "Choose one of these."
            )
        self._check_part("shard_devices", self.tensor_parallel)
        self._check_part("generation_tensor_parallel", 1)
        self._check_part("expert_parallel", 1)

    def _check_part(self, name: str, least: int) -> None:
        """Checks an optional number of devices that the role is cut into."""
        part: int | None = getattr(self, name)
        if part is None:
            return
        if part < 1 or len(self.devices) % part or part % least:
            multiple = f" and is a multiple of {least}" if least > 1 else ""
            raise PlanError(
                f"{name} = {part} on {len(self.devices)} devices.",
                f"It divides the number of the role's devices{multiple}.",
                f"Change {name}, or the list of devices.",
            )

    def to_json(self) -> dict[str, Any]:
        """Returns the object that stands under the role's name."""
        document = asdict(self) | {"devices": list(self.devices)}
        return {key: value for key, value in document.items() if value is not None}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RolePlacement:
        """Returns the placement that `to_json` wrote.

        Raises:
            PlanError: a key is unknown or missing, or a value is out of range.
        """
        check_keys(cls, document, "placement of a role")
        values: dict[str, Any] = dict(document)
        values["devices"] = tuple(document["devices"])
        if values.get("generation") is not None:
            check_names([values["generation"]], GENERATION_MODES, "way to generate")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to place an algorithm's roles, chosen or not."""

    rank: int | None
    """1 is the best; None where the plan cannot be run."""
    strategy: StrategyName
    feasible: bool
    why: str
    """One or two sentences: why it was chosen, or why it lost."""
    placement: Mapping[Role, RolePlacement] = field(default_factory=dict[Role, RolePlacement])
    chosen_by: ChosenBy | None = None
    export_only: bool = False
    """It can be simulated and exported, but not run here."""
    rollout_micro_batches: int | None = None
    """Parts in which a rollout is generated and scored; None: the config's, or one."""
    sync_every: int | None = None
    """Iterations from one update of the generating weights to the next; None: the config's."""
    predicted: Prediction | None = None
    bound_by: Bound | None = None

    @property
    def devices(self) -> tuple[int, ...]:
        """Every device that a role uses, ascending."""
        return tuple(sorted({device for p in self.placement.values() for device in p.devices}))

    def is_apart(self, role: Role) -> bool:
        """Whether no other role shares a device with `role`."""
        return is_apart({each: p.devices for each, p in self.placement.items()}, role)

    def to_json(self) -> dict[str, Any]:
        """Returns one entry of `plans` in `plan --json`."""
        document: dict[str, Any] = {
            "rank": self.rank,
            "strategy": self.strategy,
            "chosen_by": self.chosen_by,
            "feasible": self.feasible,
            "export_only": self.export_only if self.feasible or self.export_only else None,
            "placement": {role: p.to_json() for role, p in self.placement.items()} or None,
            "rollout_micro_batches": self.rollout_micro_batches,
            "sync_every": self.sync_every,
            "predicted": self.predicted.to_json() if self.predicted else None,
            "bound_by": self.bound_by,
            "why": self.why,
        }
        return {k: value for k, value in document.items() if value is not None or k == "rank"}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Returns the plan that `to_json` wrote.

        Raises:
            PlanError: a key is unknown or missing, or a name is in no list.
        """
        check_keys(cls, document, "plan")
        check_names([document["strategy"]], STRATEGIES, "strategy")
        placement: Mapping[Role, Any] = document.get("placement", {})
        check_names(map(kind_of, placement), ROLES, "role")
        predicted = document.get("predicted")
        values: dict[str, Any] = dict(document)
        values["placement"] = {r: RolePlacement.from_json(p) for r, p in placement.items()}
        values["predicted"] = Prediction.from_json(predicted) if predicted else None
        return cls(**values)


def is_apart(devices: Mapping[Role, Sequence[int]], role: Role) -> bool:
    """Whether no other role shares a device with `role`.

    Args:
        devices: of every role that has a place.
        role: the one that is meant.
    """
    own = set(devices[role])
    return all(own.isdisjoint(held) for other, held in devices.items() if other != role)


class SearchSummary(TypedDict):
    """How the plans were found."""

    candidates: int
    simulated: int
    seconds: float


def plans_document(
    request: Mapping[str, Any], plans: Sequence[Plan], search: SearchSummary | None = None
) -> dict[str, Any]:
    """Returns the whole document of `plan --json`; `search` is absent where none took place."""
    document: dict[str, Any] = {
        "request": dict(request),
        "plans": [plan.to_json() for plan in plans],
    }
    return document if search is None else document | {"search": dict(search)}
