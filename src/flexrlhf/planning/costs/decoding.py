"""Seconds of generation: prefill, then one step per token with ever fewer sequences."""

from __future__ import annotations

from dataclasses import dataclass

from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.collectives import all_gather_s, all_reduce_s
from flexrlhf.planning.costs.groups import CommunicationGroup
from flexrlhf.planning.costs.held_model import DTYPE_BYTES, HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.memory import Engine


@dataclass(frozen=True, slots=True)
class Decoder:
    """One replica of an engine.

    Source of the step's time: kipp.ly/transformer-inference-arithmetic: weights and cache have to
    be read once a step, products done for every sequence; the slower of the two counts.
    """

    model: HeldModel
    engine: Engine
    device: DeviceType
    calibration: Calibration
    tensor_group: CommunicationGroup
    shard_group: CommunicationGroup
    pipeline: int = 1

    def prefill_s(self, num_prompts: float, prompt: Lengths) -> float:
        """Returns the seconds in which `num_prompts` distinct prompts are taken in."""
        if prompt.mean == 0:
            return 0.0
        tokens = num_prompts * prompt.mean
        context = prompt.mean_square / prompt.mean / 2
        flops = self.model.shape.forward_flops(tokens, context, with_head=False)
        calibration = self.calibration
        speed = self.device.peak_flops(self.model.compute_dtype) * calibration.forward_efficiency
        layers_s = calibration.layer_s * self.model.shape.layers
        return (
            flops / speed / self.engine.tensor / self.pipeline + layers_s + self._reduce_s(tokens)
        )

    def decode_s(self, samples: float, limit: float, prompt: Lengths, response: Lengths) -> float:
        """Returns the seconds of all decode steps for `samples` sequences.

        Args:
            samples: sequences of this replica.
            limit: sequences that its cache holds at once.
            prompt: tokens before.
            response: tokens to generate.
        """
        at_once = min(samples, limit)
        if at_once <= 0:
            return 0.0
        if not self.engine.continuous:
            steps = response.longest_of(at_once)
            rounds = samples / at_once
            context = prompt.mean + steps / 2
            return rounds * steps * self.step_s(at_once, context)
        tail = response.falls(at_once)
        tail_tokens = sum(steps * running for steps, running in tail)
        full_steps = max(0.0, samples * response.mean - tail_tokens) / at_once
        seconds = full_steps * self.step_s(at_once, prompt.mean + response.mean / 2)
        generated = 0.0
        for steps, running in tail:
            seconds += steps * self.step_s(running, prompt.mean + generated + steps / 2)
            generated += steps
        return seconds

    def step_s(self, batch: float, context: float) -> float:
        """Returns the seconds of one decode step.

        Args:
            batch: sequences.
            context: tokens that each attends to.
        """
        shape, calibration, split = self.model.shape, self.calibration, self.engine.tensor
        width = DTYPE_BYTES[self.model.compute_dtype]
        bandwidth = self.device.memory_bandwidth * calibration.decode_bandwidth
        speed = self.device.peak_flops(self.model.compute_dtype) * calibration.forward_efficiency
        passes = batch / self.pipeline  # with p stages, p parts of the batch are under way
        weights_s = self._weights_read(passes) * width / split / bandwidth
        cache_split = min(split, shape.cache_heads)
        cache = batch * context * shape.cache_values_per_token * width / cache_split
        products_s = shape.forward_flops(passes, 0.0) / split / speed
        layer_s = calibration.eager_layer_s if self.engine.eager else calibration.decode_layer_s
        launches_s = shape.layers * layer_s + calibration.step_s
        work_s = max(weights_s, products_s) + cache / bandwidth / self.pipeline
        return self._gathered(launches_s + work_s) + self._reduce_s(passes)

    def _weights_read(self, batch: float) -> float:
        """Parameters that a step touches: of the experts only those that some token chose."""
        shape = self.model.shape
        if not shape.experts:
            return float(
                shape.num_params - (0 if shape.tied_embeddings else shape.embedding_params)
            )
        idle = (1 - shape.experts_per_token / shape.experts) ** batch
        always = shape.num_active_params
        return always + (shape.num_params - always) * (1 - idle)

    def _gathered(self, work_s: float) -> float:
        """Adds the gather of all weights, where each step needs one."""
        if self.engine.mode != "per_token":
            return work_s
        gather_s = all_gather_s(
            self.model.weight_bytes, self.shard_group, self.calibration.link_efficiency
        )
        return work_s + gather_s - self.calibration.overlap * min(work_s, gather_s)

    def _reduce_s(self, tokens: float) -> float:
        """Two all-reduces of the hidden state per layer under tensor parallelism."""
        width = DTYPE_BYTES[self.model.compute_dtype]
        num_bytes = tokens * self.model.shape.hidden * width
        once = all_reduce_s(num_bytes, self.tensor_group, self.calibration.link_efficiency)
        return 2 * self.model.shape.layers * once
