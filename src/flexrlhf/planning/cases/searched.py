"""The best layout of each role and of generation, each for itself, as ReaL's search finds them.

Roles work one after the other, so the fastest layout of each would be the best of all; where their
bytes do not fit together, the role that gains most bytes for least time takes a smaller layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from flexrlhf.core.names import Role
from flexrlhf.planning.cases.degrees import Degrees
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.decoding import Decoder
from flexrlhf.planning.costs.groups import replica_group, shard_group, tensor_group
from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.memory import (
    Engine,
    generation_bytes,
    resting_bytes,
    score_bytes,
    train_bytes,
)
from flexrlhf.planning.costs.passes import Passes
from flexrlhf.planning.costs.workload import Workload
from flexrlhf.planning.placement.placed_role import layout_of
from flexrlhf.planning.placement.plan import RolePlacement

_GENERATION: Final = "generation"
_FILL: Final = 0.9
_MOST_STAGES: Final = 8
_PASSES_PER_STAGE: Final = 2


@dataclass(frozen=True, slots=True)
class _Choice:
    """One layout of one role, or one way to generate."""

    placement: RolePlacement
    seconds: float
    resting: float
    working: float


@dataclass(frozen=True, slots=True)
class LayoutSearch:
    """Everything that the layouts depend on."""

    cluster: Cluster
    models: Mapping[Role, HeldModel]
    workload: Workload
    calibration: Calibration

    def improve(self, start: Degrees) -> Degrees:
        """Returns the layouts that the search finds for roles on the devices that they have."""
        choices: dict[str, list[_Choice]] = {
            role: sorted(self._trainings(role, placed), key=lambda c: c.seconds)
            for role, placed in start.placement.items()
            if role in self.models
        }
        generations = self._generations(start.placement["actor"], start.engine)
        choices[_GENERATION] = sorted(generations, key=lambda c: c.seconds)
        chosen = self._fitting(choices)
        placement = {
            role: chosen[role].placement if role in chosen else placed
            for role, placed in start.placement.items()
        }
        if _GENERATION in chosen:
            split = chosen[_GENERATION].placement.generation_tensor_parallel
            placement["actor"] = replace(
                placement["actor"], generation="tensor_parallel", generation_tensor_parallel=split
            )
        return replace(start, placement=placement)

    def _trainings(self, role: Role, placed: RolePlacement) -> Iterator[_Choice]:
        model, total = self.models[role], len(placed.devices)
        for tensor, pipeline in self._degrees(total):
            data = total // tensor // pipeline
            samples = self._share(data) / self.workload.mini_batches
            if samples < 1:
                continue
            size = placed.micro_batch_samples or 1
            if pipeline > 1:
                size = min(size, int(samples / (_PASSES_PER_STAGE * pipeline)))
            candidate = replace(
                placed,
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
                data_parallel=data,
                micro_batch_samples=max(1, min(size, int(samples))),
                zero_stage=1,
            )
            yield self._choice(model, candidate)

    def _share(self, replicas: int) -> float:
        """Samples of each replica, or of the replicas that share a sequence."""
        return self.workload.num_samples / max(1.0, replicas / self.workload.sequence_split)

    def _degrees(self, total: int) -> Iterator[tuple[int, int]]:
        node = min(8, max(len(node.devices) for node in self.cluster.nodes))
        for tensor in (1, 2, 4, 8):
            for pipeline in (1, 2, 4, 8):
                if tensor <= node and pipeline <= _MOST_STAGES and total % (tensor * pipeline) == 0:
                    yield tensor, pipeline

    def _choice(self, model: HeldModel, placed: RolePlacement) -> _Choice:
        layout, workload = layout_of(placed), self.workload
        passes = self._passes(model, placed, layout)
        size = placed.micro_batch_samples or 1
        tokens = size * workload.longest_tokens / workload.sequence_split
        samples = self._share(layout.data)

        def count(of: float) -> float:
            return float(max(1, -(-of // size)))

        everything = workload.num_samples * workload.mean_tokens
        forward = passes.forward(everything, workload.mean_context, count(samples))
        seconds = forward.compute_s + forward.communication_s
        if model.is_trained:
            steps = workload.mini_batches
            once = passes.forward_backward(
                everything / steps, workload.mean_context, count(samples / steps)
            )
            update = passes.optimizer_step()
            seconds += steps * (once.compute_s + once.communication_s)
            seconds += steps * (update.compute_s + update.communication_s)
            working = train_bytes(model, layout, tokens=tokens, logit_tokens=workload.logit_tokens)
        else:
            working = score_bytes(model, layout, tokens=tokens, logit_tokens=workload.logit_tokens)
        resting = sum(resting_bytes(model, layout).values())
        return _Choice(placed, seconds, resting, sum(working.values()))

    def _fitting(self, choices: Mapping[str, list[_Choice]]) -> dict[str, _Choice]:
        """The fastest layouts, made smaller until all weights and the largest pass fit."""
        room = _FILL * self.cluster.device_type(0).memory_bytes - self.calibration.held_bytes
        chosen = {name: found[0] for name, found in choices.items() if found}
        if not chosen:
            return chosen

        def need(chosen: Mapping[str, _Choice]) -> float:
            resting = sum(choice.resting for choice in chosen.values())
            return resting + max(choice.working for choice in chosen.values())

        while (now := need(chosen)) > room:
            smaller = [
                ((other.seconds - chosen[name].seconds) / (now - needed), name, other)
                for name, found in choices.items()
                for other in found
                if (needed := need({**chosen, name: other})) < now
            ]
            if not smaller:
                break
            _, name, other = min(smaller, key=lambda change: change[:2])
            chosen[name] = other
        return chosen

    def _generations(self, placed: RolePlacement, engine: Engine) -> Iterator[_Choice]:
        """Generation split over ever more devices of a node."""
        model, total = self.models["actor"], len(placed.devices)
        device = self.cluster.device_type(placed.devices[0])
        workload, longest = self.workload, self.workload.longest_tokens
        alone = tensor_group(self.cluster, placed.devices, Layout())
        for tensor in dict.fromkeys(tensor for tensor, _ in self._degrees(total)):
            samples = workload.num_samples * tensor / total
            if samples < 1:
                continue
            split = replace(engine, mode="tensor_parallel", tensor=tensor, has_own_copy=True)
            layout = Layout(tensor=tensor, data=total // tensor)
            group = tensor_group(self.cluster, placed.devices, layout)
            decoder = Decoder(model, split, device, self.calibration, group, alone)
            seconds = decoder.decode_s(samples, samples, workload.prompt, workload.response)
            needed = generation_bytes(model, layout, split, samples=samples, tokens=longest)
            candidate = replace(
                placed, generation="tensor_parallel", generation_tensor_parallel=tensor
            )
            yield _Choice(candidate, seconds, 0.0, sum(needed.values()))

    def _passes(self, model: HeldModel, placed: RolePlacement, layout: Layout) -> Passes:
        cluster, devices = self.cluster, placed.devices
        return Passes(
            model,
            layout,
            cluster.device_type(devices[0]),
            self.calibration,
            tensor_group(cluster, devices, layout),
            shard_group(cluster, devices, layout),
            replica_group(cluster, devices, layout),
        )
