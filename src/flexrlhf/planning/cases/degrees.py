"""Into which parts each role of a case is split, and how its actor generates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from flexrlhf.core.names import GenerationMode, Role
from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import Case
from flexrlhf.planning.cases.systems import System
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.held_model import DTYPE_BYTES, HeldModel
from flexrlhf.planning.costs.memory import Engine, resting_bytes
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.placed_role import layout_of
from flexrlhf.planning.placement.plan import RolePlacement

_GATHERED_FILL: Final = 0.4
"""Share of a device's memory that a whole copy of the weights may take while it generates."""
_COPIES_FILL: Final = 0.7
"""Share of a device's memory that whole copies of all models may take."""
_TRAINED_FILL: Final = 0.9
"""Share of a device's memory that weights, gradients and optimiser of one role may take."""
_TRANSFORMERS_LAUNCHES: Final = 45
"""Operations of one layer and decode step in `transformers`: 7 products, 2 norms of 6, rotary
embedding 10, attention 8, cache 2, activation 2, sums 2."""
_FUSED_LAUNCHES: Final = 10
"""The same where DeepSpeed's hybrid engine puts in its kernels, which it has for GPT and OPT."""
_SERVED_LAUNCHES: Final = 25
_UNCAPTURED_YEAR: Final = 2024
"""Engines of that year do not capture steps that are split over devices (vLLM 0.3 and 0.4)."""
_OWN_LAUNCHES: Final = 20
"""The same with fused norms, rotary embedding and attention."""
_SERVED_AT_ONCE: Final = {2023: 256, 2024: 256, 2025: 1024}
"""Source: vLLM's `max_num_seqs`, its default until and from V1 on."""
_PASSES_PER_STAGE: Final = 2
"""Micro-batches per pipeline stage. Source: ReaL and Megatron recipes keep at least twice as many."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """Placements of all roles, and what the engine does."""

    placement: Mapping[Role, RolePlacement]
    engine: Engine


@dataclass(frozen=True, slots=True)
class DegreeRules:
    """Everything that the degrees of a case depend on."""

    case: Case
    system: System
    cluster: Cluster
    models: Mapping[Role, HeldModel]
    workload: Workload
    taken: Assumptions
    fills_memory: bool = False
    """A pass is as large as the batch, and that as large as fits."""

    def degrees(self, devices: Mapping[Role, tuple[int, ...]]) -> Degrees:
        """Returns the degrees that a case states, or its system's usual ones."""
        placement = {role: self._training(role, held) for role, held in devices.items()}
        generator: Role = "shadow_actor" if "shadow_actor" in devices else "actor"
        room = self._room(generator, placement)
        placement[generator], engine = self._generation(generator, placement[generator], room)
        return Degrees(placement, engine)

    def _training(self, role: Role, devices: tuple[int, ...]) -> RolePlacement:
        case, system = self.case, self.system
        is_megatron = system.backend == "megatron" or case.number("tp_train") is not None
        tensor = pipeline = 1
        if is_megatron:
            tensor, pipeline = self._model_degrees(len(devices))
        zero = 1 if is_megatron and tensor * pipeline > 1 else system.zero_stage
        stated = case.number("zero_stage")
        if stated is not None:
            zero = min(3, int(stated))
            if zero < 3 and self._is_too_large(role, tensor * pipeline):
                zero = self.taken.take("zero_stage", 3, f"for the {role}: whole copies do not fit")
        elif not is_megatron:
            zero = self._usual_stage()
        data = len(devices) // (tensor * pipeline)
        return RolePlacement(
            devices,
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            data_parallel=data,
            zero_stage=zero,
            offload=self._offloads(role, devices),
            micro_batch_samples=self._micro_batch(data, pipeline),
        )

    def _usual_stage(self) -> int:
        """The system's, but with adapters whole copies as long as they fit side by side."""
        usual = self.system.zero_stage
        whole = sum(model.weight_bytes for model in self.models.values())
        room = _COPIES_FILL * self.cluster.device_type(0).memory_bytes
        if self.case.number("lora_rank") and whole <= room:
            return self.taken.take("zero_stage", 2, "with adapters, whole copies fit")
        return self.taken.take("zero_stage", usual, f"usual of {self.system.name}")

    def _is_too_large(self, role: Role, parts: int) -> bool:
        """Whether whole copies of all models overfill a device and this one is not trained."""
        whole = sum(model.weight_bytes for model in self.models.values()) / parts
        model = self.models.get(role)
        room = _TRAINED_FILL * self.cluster.device_type(0).memory_bytes
        return model is not None and not model.is_trained and whole > room

    def _offloads(self, role: Role, devices: tuple[int, ...]) -> bool:
        """Whether the optimiser rests in the host: as stated, or where a device cannot hold it."""
        stated = self.case.flag("offload")
        model = self.models.get(role)
        if model is None or not model.is_trained or stated is not None:
            return bool(stated)
        held = model.weight_bytes + model.gradient_bytes + model.optimizer_bytes
        room = _TRAINED_FILL * self.cluster.device_type(devices[0]).memory_bytes * len(devices)
        if held <= room:
            return False
        return self.taken.take("offload", True, f"the {role}'s optimiser does not fit")

    def _model_degrees(self, num_devices: int) -> tuple[int, int]:
        case = self.case
        tensor, pipeline = case.number("tp_train"), case.number("pp_train")
        if tensor is None:
            usual = min(8, self._node_size)
            tensor = self.taken.take("tp_train", usual, "a node, at most 8")
        if pipeline is None:
            pipeline = self.taken.take("pp_train", 1, "usual")
        tensor = gcd(int(tensor), num_devices)
        pipeline = gcd(int(pipeline), num_devices // tensor)
        return tensor, pipeline

    def _micro_batch(self, data: int, pipeline: int) -> int | None:
        """As many samples as the system's tokens of a pass hold, fewer where a pipeline asks."""
        if self.fills_memory:
            return None
        workload = self.workload
        held = int(self.system.micro_batch_tokens // max(1.0, workload.mean_tokens))
        share = workload.num_samples / workload.mini_batches / data
        if pipeline > 1:
            share /= _PASSES_PER_STAGE * pipeline
        return max(1, min(held, int(share)))

    def _room(self, generator: Role, placement: Mapping[Role, RolePlacement]) -> float:
        """Bytes that a copy of the weights may take on a device of the engine.

        Half of what weights and optimisers at rest leave, at most `_GATHERED_FILL` of all.
        """
        device = placement[generator].devices[0]
        resting = sum(
            sum(resting_bytes(self.models[role], layout_of(placed)).values())
            for role, placed in placement.items()
            if role in self.models and device in placed.devices
        )
        memory = self.cluster.device_type(device).memory_bytes
        return min(_GATHERED_FILL * memory, max(0.0, _TRAINED_FILL * memory - resting) / 2)

    def _generation(
        self, role: Role, placed: RolePlacement, room: float
    ) -> tuple[RolePlacement, Engine]:
        kind = self._generator()
        if kind == "serving" or role != "actor":
            placed = self._served(role, placed, room)
        elif kind == "transformers":
            placed = self._transformers(placed, room)
        tensor = placed.generation_tensor_parallel or placed.tensor_parallel
        most = self._most_samples(kind, placed, tensor)
        in_rounds = kind == "transformers" or (self.system.rolls_in_parts and most is not None)
        launches = self._launches(kind, tensor)
        return placed, Engine(
            continuous=not in_rounds,
            launches=launches,
            copies_cache=kind == "transformers",
            most_samples=most,
            shares_prompts=kind == "serving",
            has_own_copy=kind == "serving" and role == "actor",
            takes_buckets=self.case.variant.get("checkpoint_engine") != "off",
        )

    def _launches(self, kind: str, tensor: int) -> int:
        if kind == "serving" and tensor > 1 and self.system.year == _UNCAPTURED_YEAR:
            return _SERVED_LAUNCHES
        is_hybrid = self.case.variant.get("hybrid_engine") == "on"
        is_fused = kind == "transformers" and is_hybrid
        if is_fused and not self.models["actor"].shape.gated_mlp:
            return _FUSED_LAUNCHES
        return {"transformers": _TRANSFORMERS_LAUNCHES, "own": _OWN_LAUNCHES}.get(kind, 0)

    def _generator(self) -> str:
        stated = self.case.word("generation_engine")
        if stated == "transformers":
            return "transformers"
        return self.system.generator if stated is None else "serving"

    def _transformers(self, placed: RolePlacement, room: float) -> RolePlacement:
        """DeepSpeed's ways: gathered, split in a node by the hybrid engine, or for every token."""
        if placed.zero_stage < 3:
            return placed
        tensor = self._smallest_split(len(placed.devices), room)
        hybrid = self.case.variant.get("hybrid_engine")
        if not self.system.has_hybrid_engine:
            hybrid = "off"
        if hybrid is None:
            is_stated = self.case.number("zero_stage") is not None
            hybrid = self.taken.take(
                "hybrid_engine",
                "off" if is_stated else "on",
                "a stated ZeRO stage holds throughout",
            )
        if hybrid != "off":
            return replace(placed, generation="tensor_parallel", generation_tensor_parallel=tensor)
        is_small = self._whole_bytes <= _GATHERED_FILL * self._memory(placed)
        mode: GenerationMode = "gathered" if is_small else "per_token"
        return replace(placed, generation=mode)

    def _served(self, role: Role, placed: RolePlacement, room: float) -> RolePlacement:
        total = len(placed.devices)
        stated = self.case.number("tp_generate")
        tensor = int(stated) if stated is not None else self._smallest_split(total, room)
        if stated is None:
            self.taken.take("tp_generate", tensor, "the fewest devices that hold the weights")
        tensor = gcd(tensor, total)
        if role == "actor":
            return replace(placed, generation="tensor_parallel", generation_tensor_parallel=tensor)
        pipeline = gcd(self.case.count("pp_generate"), total // tensor)
        return RolePlacement(
            placed.devices,
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            data_parallel=total // tensor // pipeline,
            micro_batch_samples=placed.micro_batch_samples,
        )

    def _smallest_split(self, num_devices: int, room: float) -> int:
        """The fewest devices, a power of two inside a node, that hold the actor's weights."""
        whole = self._whole_bytes
        tensor, most = 1, gcd(num_devices, 8 * self._node_size)
        while whole / tensor > room and tensor * 2 <= most and num_devices % (tensor * 2) == 0:
            tensor *= 2
        return tensor

    @property
    def _whole_bytes(self) -> float:
        model = self.models["actor"]
        return model.shape.num_params * DTYPE_BYTES[model.compute_dtype]

    def _memory(self, placed: RolePlacement) -> int:
        return self.cluster.device_type(placed.devices[0]).memory_bytes

    def _most_samples(self, kind: str, placed: RolePlacement, tensor: int) -> int | None:
        stated = self.case.number("generation_batch_per_gpu")
        if kind != "serving":
            return None if stated is None else int(stated) * tensor
        if stated is not None and self.system.rolls_in_parts:
            replicas = max(1, len(placed.devices) // tensor)
            senders = self.case.number("n_gpus_train") or len(placed.devices)
            return max(1, round(int(stated) * senders / replicas))
        return _SERVED_AT_ONCE[self.system.year]

    @property
    def _node_size(self) -> int:
        return max(len(node.devices) for node in self.cluster.nodes)
