"""Into which parts each role of a case is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Final

from flexrlhf.core.names import Role
from flexrlhf.planning.cases.facts import Facts
from flexrlhf.planning.cases.generating import GenerationRules
from flexrlhf.planning.costs.memory import Engine
from flexrlhf.planning.placement.plan import RolePlacement

_COPIES_FILL: Final = 0.7
"""Share of a device's memory that whole copies of all models may take."""
_TRAINED_FILL: Final = 0.9
"""Share of a device's memory that weights, gradients and optimiser of one role may take."""
_PASSES_PER_STAGE: Final = 2
"""Micro-batches per pipeline stage, as ReaL and Megatron's recipes keep them."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """Placements of all roles, and what the engine does."""

    placement: Mapping[Role, RolePlacement]
    engine: Engine


@dataclass(frozen=True, slots=True)
class DegreeRules:
    """What is stated about degrees, and the system's usual ones."""

    facts: Facts

    def degrees(self, devices: Mapping[Role, tuple[int, ...]]) -> Degrees:
        """Returns the degrees that a case states, or its system's usual ones."""
        placement: dict[Role, RolePlacement] = {
            role: self._at_rest(role, devices) for role in devices
        }
        generator: Role = "shadow_actor" if "shadow_actor" in devices else "actor"
        rules = GenerationRules(self.facts)
        placement[generator], engine = rules.generation(generator, placement)
        return Degrees(placement, engine)

    def _at_rest(self, role: Role, held: Mapping[Role, tuple[int, ...]]) -> RolePlacement:
        case, system, devices = self.facts.case, self.facts.system, held[role]
        model = self.facts.models.get(role)
        is_apart = "shadow_actor" in held and not (model is not None and model.is_trained)
        is_split = is_apart and system.splits_when_apart and case.number("zero_stage") is None
        is_megatron = system.backend == "megatron" or case.number("tp_train") is not None
        is_megatron |= is_split
        tensor = pipeline = 1
        if is_megatron:
            tensor, pipeline = self._model_degrees(len(devices))
        is_cut = tensor * pipeline * case.count("ep_train") > 1
        zero = 1 if is_megatron and is_cut else system.zero_stage
        stated = case.number("zero_stage")
        if stated is not None:
            zero = min(3, int(stated))
            if zero < 3 and self._is_too_large(role, tensor * pipeline):
                zero = self.facts.taken.take(
                    "zero_stage", 3, f"for the {role}: whole copies do not fit"
                )
        elif not is_megatron:
            zero = self._usual_stage(held)
        data = len(devices) // (tensor * pipeline)
        return RolePlacement(
            devices,
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            data_parallel=data,
            zero_stage=zero,
            offload=self._offloads(role, devices),
            micro_batch_samples=self._micro_batch(data, pipeline),
            expert_parallel=self._experts(role, len(devices) // pipeline),
        )

    def _usual_stage(self, held: Mapping[Role, tuple[int, ...]]) -> int:
        """The system's, but with adapters whole copies as long as they fit side by side."""
        usual, models = self.facts.system.zero_stage, self.facts.models
        whole = max(
            sum(models[r].weight_bytes for r in models if device in held.get(r, ()))
            for device in {devices[0] for devices in held.values()}
        )
        room = _COPIES_FILL * self.facts.memory((0,))
        if self.facts.case.number("lora_rank") and whole <= room:
            return self.facts.taken.take("zero_stage", 2, "with adapters, whole copies fit")
        return self.facts.taken.take("zero_stage", usual, f"usual of {self.facts.system.name}")

    def _is_too_large(self, role: Role, parts: int) -> bool:
        """Whether whole copies of all models overfill a device and this one is not trained."""
        whole = sum(model.weight_bytes for model in self.facts.models.values()) / parts
        model = self.facts.models.get(role)
        room = _TRAINED_FILL * self.facts.memory((0,))
        return model is not None and not model.is_trained and whole > room

    def _offloads(self, role: Role, devices: tuple[int, ...]) -> bool:
        """Whether the optimiser rests in the host: as stated, or where a device cannot hold it."""
        stated = self.facts.case.flag("offload")
        model = self.facts.models.get(role)
        if model is None or not model.is_trained or stated is not None:
            return bool(stated)
        held = model.weight_bytes + model.gradient_bytes + model.optimizer_bytes
        room = _TRAINED_FILL * self.facts.memory(devices) * len(devices)
        if held <= room:
            return False
        self.facts.taken.note(f"offload=yes (the {role}'s optimiser does not fit)")
        return True

    def _experts(self, role: Role, stage_devices: int) -> int | None:
        """Devices that divide the experts, as stated; None for a model that has none."""
        model, stated = self.facts.models.get(role), self.facts.case.number("ep_train")
        if stated is None or model is None or not model.shape.experts:
            return None
        parts = gcd(int(stated), stage_devices)
        return parts if parts > 1 else None

    def _model_degrees(self, num_devices: int) -> tuple[int, int]:
        case = self.facts.case
        tensor, pipeline = case.number("tp_train"), case.number("pp_train")
        if tensor is None:
            usual = min(8, self.facts.node_size)
            tensor = self.facts.taken.take("tp_train", usual, "a node, at most 8")
        if pipeline is None:
            pipeline = self.facts.taken.take("pp_train", 1, "usual")
        tensor = gcd(int(tensor), num_devices)
        pipeline = gcd(int(pipeline), num_devices // tensor)
        return tensor, pipeline

    def _micro_batch(self, data: int, pipeline: int) -> int | None:
        """As many samples as the system's tokens of a pass hold, fewer where a pipeline asks.

        Of each replica, or of the replicas that share a sequence.
        """
        if self.facts.fills_memory:
            return None
        workload = self.facts.workload
        split = workload.sequence_split
        tokens = self.facts.system.micro_batch_tokens * split
        held = int(tokens // max(1.0, workload.mean_tokens))
        share = workload.num_samples / workload.mini_batches / max(1.0, data / split)
        if pipeline > 1:
            share /= _PASSES_PER_STAGE * pipeline
        return max(1, min(held, int(share)))
