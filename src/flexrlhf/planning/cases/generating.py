"""How the actor of a case generates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from flexrlhf.core.names import GenerationMode, Role
from flexrlhf.planning.cases.facts import Facts
from flexrlhf.planning.costs.held_model import DTYPE_BYTES
from flexrlhf.planning.costs.memory import Engine, resting_bytes
from flexrlhf.planning.placement.placed_role import layout_of
from flexrlhf.planning.placement.plan import RolePlacement

_GATHERED_FILL: Final = 0.4
"""Share of a device's memory that a whole copy of the weights may take while it generates."""
_RESTING_FILL: Final = 0.9
"""Share of a device's memory that weights and optimisers at rest may take."""
_TRANSFORMERS_LAUNCHES: Final = 45
"""Operations of one layer and decode step in `transformers`: 7 products, 2 norms of 6, rotary
embedding 10, attention 8, cache 2, activation 2, sums 2."""
_FUSED_LAUNCHES: Final = 10
"""The same where DeepSpeed's hybrid engine puts in its kernels, which it has for GPT and OPT."""
_SERVED_LAUNCHES: Final = 25
"""The same in vLLM."""
_UNCAPTURED_YEAR: Final = 2024
"""Engines of that year do not capture steps that are split over devices (vLLM 0.3 and 0.4)."""
_OWN_LAUNCHES: Final = 20
"""The same in ReaL: fused norms, rotary embedding and attention."""
_OLD_KERNELS_YEAR: Final = 2023
_OLD_CACHE_READS: Final = 4
"""Attention of that year works by query head; TensorRT-LLM 0.6 on grouped queries shows 4."""
_USUAL_ROLLOUTS: Final = ((10e9, 16.0), (20e9, 8.0), (float("inf"), 4.0))
"""Parameters below which a trainer's GPU sends so many prompts at once. Source: OpenRLHF's
benchmark, settings of its 7B, 13B and 70B runs."""
_SERVED_AT_ONCE: Final = {2023: 256, 2024: 256, 2025: 1024}
"""Source: vLLM's `max_num_seqs`, its default until and from V1 on."""


@dataclass(frozen=True, slots=True)
class GenerationRules:
    """What is stated about generation, and the system's usual ways."""

    facts: Facts

    def _room(self, generator: Role, placement: Mapping[Role, RolePlacement]) -> float:
        """Bytes that a copy of the weights may take on a device of the engine.

        Half of what weights and optimisers at rest leave, at most `_GATHERED_FILL` of all.
        """
        device = placement[generator].devices[0]
        resting = sum(
            sum(resting_bytes(self.facts.models[role], layout_of(placed)).values())
            for role, placed in placement.items()
            if role in self.facts.models and device in placed.devices
        )
        memory = self.facts.memory((device,))
        return min(_GATHERED_FILL * memory, max(0.0, _RESTING_FILL * memory - resting) / 2)

    def generation(
        self, role: Role, placement: Mapping[Role, RolePlacement]
    ) -> tuple[RolePlacement, Engine]:
        """Returns the place of the role that generates, and what its engine does."""
        placed, room = placement[role], self._room(role, placement)
        kind = self._generator()
        if kind == "serving" or role != "actor":
            placed = self._served(role, placed, room)
        elif kind == "transformers":
            placed = self._transformers(placed, room)
        tensor = placed.generation_tensor_parallel or placed.tensor_parallel
        most = self._most_samples(kind, placed, tensor)
        sends_parts = self._rollout_batch is not None
        in_rounds = kind == "transformers" or (self.facts.system.rolls_in_parts and sends_parts)
        launches = self._launches(kind, tensor)
        return placed, Engine(
            continuous=not in_rounds,
            launches=launches,
            copies_cache=kind == "transformers",
            cache_reads=_OLD_CACHE_READS if self.facts.system.year == _OLD_KERNELS_YEAR else 1,
            most_samples=most,
            shares_prompts=kind == "serving",
            has_own_copy=kind == "serving" and role == "actor" and self._trains,
            takes_buckets=self.facts.case.variant.get("checkpoint_engine") != "off",
        )

    @property
    def _trains(self) -> bool:
        return any(model.is_trained for model in self.facts.models.values())

    @property
    def _rollout_batch(self) -> float | None:
        """Prompts that a trainer sends at once: as stated, or those of the system's own scripts.

        The latter only where no length is stated either, which is how authors report their own
        runs.
        """
        case = self.facts.case
        stated = case.number("generation_batch_per_gpu")
        lengths = ("response_tokens_mean", "response_tokens_max", "sequence_tokens_total")
        if stated is not None or not self.facts.system.rolls_in_parts:
            return stated
        if any(case.number(column) is not None for column in lengths):
            return None
        params = self.facts.models["actor"].shape.num_params
        usual = next(batch for most, batch in _USUAL_ROLLOUTS if params < most)
        return self.facts.taken.take("generation_batch_per_gpu", usual, "its own benchmark's")

    def _launches(self, kind: str, tensor: int) -> int:
        if kind == "serving" and tensor > 1 and self.facts.system.year == _UNCAPTURED_YEAR:
            return _SERVED_LAUNCHES
        is_hybrid = self.facts.case.variant.get("hybrid_engine") == "on"
        is_fused = kind == "transformers" and is_hybrid
        if is_fused and not self.facts.models["actor"].shape.gated_mlp:
            return _FUSED_LAUNCHES
        return {"transformers": _TRANSFORMERS_LAUNCHES, "own": _OWN_LAUNCHES}.get(kind, 0)

    def _generator(self) -> str:
        stated = self.facts.case.word("generation_engine")
        if stated == "transformers":
            return "transformers"
        return self.facts.system.generator if stated is None else "serving"

    def _transformers(self, placed: RolePlacement, room: float) -> RolePlacement:
        """DeepSpeed's ways: gathered, split in a node by the hybrid engine, or for every token."""
        if placed.zero_stage < 3:
            return placed
        tensor = self._smallest_split(len(placed.devices), room)
        hybrid = self.facts.case.variant.get("hybrid_engine")
        if not self.facts.system.has_hybrid_engine:
            hybrid = "off"
        if hybrid is None:
            is_stated = self.facts.case.number("zero_stage") is not None
            hybrid = self.facts.taken.take(
                "hybrid_engine",
                "off" if is_stated else "on",
                "a stated ZeRO stage holds throughout",
            )
        if hybrid != "off":
            return replace(placed, generation="tensor_parallel", generation_tensor_parallel=tensor)
        is_small = self._whole_bytes <= _GATHERED_FILL * self.facts.memory(placed.devices)
        mode: GenerationMode = "gathered" if is_small else "per_token"
        return replace(placed, generation=mode)

    def _served(self, role: Role, placed: RolePlacement, room: float) -> RolePlacement:
        total = len(placed.devices)
        stated = self.facts.case.number("tp_generate")
        if stated is not None:
            tensor = int(stated)
        elif role != "actor" and self.facts.system.splits_when_apart:
            tensor = self.facts.taken.take(
                "tp_generate", self.facts.node_size, "a node, as trained"
            )
        else:
            tensor = self._smallest_split(total, room)
            self.facts.taken.take("tp_generate", tensor, "the fewest devices that hold the weights")
        tensor = gcd(tensor, total)
        if role == "actor":
            return replace(placed, generation="tensor_parallel", generation_tensor_parallel=tensor)
        pipeline = gcd(self.facts.case.count("pp_generate"), total // tensor)
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
        tensor, most = 1, gcd(num_devices, 8 * self.facts.node_size)
        while whole / tensor > room and tensor * 2 <= most and num_devices % (tensor * 2) == 0:
            tensor *= 2
        return tensor

    @property
    def _whole_bytes(self) -> float:
        model = self.facts.models["actor"]
        return model.shape.num_params * DTYPE_BYTES[model.compute_dtype]

    def _most_samples(self, kind: str, placed: RolePlacement, tensor: int) -> int | None:
        stated = self._rollout_batch
        if kind != "serving":
            return None if stated is None else int(stated) * tensor
        if stated is not None and self.facts.system.rolls_in_parts:
            replicas = max(1, len(placed.devices) // tensor)
            senders = self.facts.case.number("n_gpus_train") or len(placed.devices)
            return max(1, round(int(stated) * senders / replicas))
        return _SERVED_AT_ONCE[self.facts.system.year]
