"""Seconds of generation: prefill, then one step per token with ever fewer sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from flexrlhf.planning.cluster.device_type import DeviceType
from flexrlhf.planning.cluster.link import Link
from flexrlhf.planning.costs.calibration import Calibration
from flexrlhf.planning.costs.collectives import all_reduce_s, late_s
from flexrlhf.planning.costs.continuous import ends
from flexrlhf.planning.costs.gathering import gather_weights_s
from flexrlhf.planning.costs.groups import CommunicationGroup
from flexrlhf.planning.costs.held_model import DTYPE_BYTES, HeldModel
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.memory import Engine, multiplied_params

_PREFILL_LAUNCHES: Final = 20
"""Operations per layer of a prefill; engines with captured decode steps launch these too."""
_COPIED_CACHE: Final = 3
"""Times a cache is moved where every step writes it anew: read, written, read by attention."""
_MOST_ANSWERS: Final = 128
"""Answers of a replica that are followed one by one; of more, several are taken as one."""
_COLLECTIVES_PER_LAYER: Final = 2
"""Under tensor parallelism, behind attention and behind the MLP. Source: Megatron-LM."""


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
    pipeline_link: Link | None = None

    def prefill_s(self, num_prompts: float, prompt: Lengths) -> float:
        """Returns the seconds in which `num_prompts` distinct prompts are taken in."""
        if prompt.mean == 0 or num_prompts <= 0:
            return 0.0
        tokens = num_prompts * prompt.mean
        context = prompt.mean_square / prompt.mean / 2
        calibration, shape = self.calibration, self.model.shape
        flops = shape.forward_flops(tokens, context, with_head=False)
        speed = self.device.peak_flops(self.model.compute_dtype) * calibration.forward_efficiency
        products_s = flops / speed / self.engine.tensor / self.pipeline
        launches_s = calibration.launch_s * _PREFILL_LAUNCHES * shape.layers
        read = self._weights_read(tokens) * self._weight_width
        weights_s = read / self.engine.tensor / self._bandwidth
        return max(products_s, launches_s, weights_s) + self._reduce_s(tokens)

    def decode_s(
        self,
        samples: float,
        limit: float,
        prompt: Lengths,
        response: Lengths,
        *,
        replicas: int = 1,
    ) -> float:
        """Returns the seconds until the last of all replicas has generated its sequences.

        Args:
            samples: sequences of this replica.
            limit: sequences that its cache holds at once.
            prompt: tokens before.
            response: tokens to generate.
            replicas: that generate as many sequences each; the longest of all is on one of them.
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
        rest = response.longest_of(samples * replicas) - generated
        return seconds + max(0.0, rest) * self.step_s(1, prompt.mean + generated + rest / 2)

    def part_s(
        self,
        samples: float,
        parts: int,
        limit: float,
        prompt: Lengths,
        response: Lengths,
        *,
        per_prompt: float,
    ) -> tuple[float, ...]:
        """Returns the seconds of each part of a rollout, prompts read.

        The first part holds the sequences that end first, and so on: long ones hold nobody back.

        Args:
            samples: sequences of a part on this replica.
            parts: of the rollout.
            limit: sequences that its cache holds at once.
            prompt: tokens before.
            response: tokens to generate.
            per_prompt: sequences that share a prompt which is read once.
        """
        total = max(parts, round(samples * parts))
        bundle = -(-total // _MOST_ANSWERS)
        at_once = max(1, round(min(samples, limit) / bundle))
        answers = max(parts, total // bundle)
        cuts = [number * answers // parts for number in range(parts + 1)]
        ended = ends(
            response.scattered(answers),
            at_once,
            lambda rows, generated: self.step_s(rows * bundle, prompt.mean + generated),
            lambda begun: self._begin_s(len(begun) * bundle / per_prompt, prompt),
        )
        return tuple(ended.parts_s([last - first for first, last in pairwise(cuts)]))

    def _begin_s(self, prompts: float, prompt: Lengths) -> float:
        """Of prompts that are read together; of one that several answers share only a part."""
        return min(prompts, 1.0) * self.prefill_s(max(prompts, 1.0), prompt)

    def step_s(self, batch: float, context: float) -> float:
        """Returns the seconds in which every sequence gets a token: of one step, or a part of it.

        Args:
            batch: sequences.
            context: tokens that each attends to.
        """
        speculation = self.engine.speculation
        if speculation is None:
            return self._pass_s(batch, context, 1)
        return speculation.token_s(
            lambda tokens: self._pass_s(batch, context, tokens),
            lambda draft: replace(self, model=draft)._pass_s(batch, context, 1),
        )

    def _pass_s(self, batch: float, context: float, tokens: int) -> float:
        """Of a pass over some new tokens of each sequence."""
        calibration, layers = self.calibration, self.model.shape.layers
        work_s = self._work_s(batch, context, tokens)
        if self.engine.launches:
            # The host runs ahead of the device, so only the slower of the two counts.
            work_s = max(work_s, calibration.launch_s * self.engine.launches * layers)
        else:
            work_s += calibration.decode_layer_s * layers
        step_s = self._gathered(work_s) + self._reduce_s(batch * tokens / self.pipeline)
        return step_s + self._hops_s() + calibration.step_s

    @property
    def _width(self) -> int:
        return DTYPE_BYTES[self.model.compute_dtype]

    @property
    def _weight_width(self) -> int:
        """Bytes of a weight; products of int8 numbers are taken to be no faster."""
        return 1 if self.engine.rounds_weights else self._width

    @property
    def _bandwidth(self) -> float:
        return self.device.memory_bandwidth * self.calibration.decode_bandwidth

    def _work_s(self, batch: float, context: float, tokens: int) -> float:
        """Weights read or products done, and the cache read."""
        shape, split = self.model.shape, self.engine.tensor
        speed = self.device.peak_flops(self.model.compute_dtype)
        speed *= self.calibration.forward_efficiency
        passes = batch * tokens / self.pipeline  # with p stages, p parts of the batch are under way
        weights_s = self._weights_read(passes) * self._weight_width / split / self._bandwidth
        products_s = shape.forward_flops(passes, 0.0) / split / speed
        cache_split = min(split, shape.cache_heads)
        cache = batch * context * shape.cache_values_per_token * self._width / cache_split
        moved = _COPIED_CACHE if self.engine.copies_cache else 1
        moved *= min(self.engine.cache_reads, shape.heads // shape.cache_heads)
        return max(weights_s, products_s) + moved * cache / self._bandwidth / self.pipeline

    def _weights_read(self, batch: float) -> float:
        """Parameters that a step touches: of the experts only those that some token chose."""
        shape = self.model.shape
        total = multiplied_params(shape)
        idle = shape.experts - shape.experts_per_token
        if idle <= 0:
            return float(total)
        experts = (shape.num_params - shape.num_active_params) * shape.experts / idle
        unmet = (1 - shape.experts_per_token / shape.experts) ** batch
        return total - experts * unmet

    def _gathered(self, work_s: float) -> float:
        """Adds the gather of all weights, where each step needs one."""
        if self.engine.mode != "per_token":
            return work_s
        gather_s = gather_weights_s(self.model, self.shard_group, self.calibration)
        return work_s + gather_s - self.calibration.overlap * min(work_s, gather_s)

    def _reduce_s(self, tokens: float) -> float:
        """Two all-reduces of the hidden state per layer under tensor parallelism."""
        if self.tensor_group.size == 1:
            return 0.0
        num_bytes = tokens * self.model.shape.hidden * DTYPE_BYTES[self.model.weight_dtype]
        once = all_reduce_s(num_bytes, self.tensor_group, self.calibration)
        once += late_s(self.tensor_group, self.calibration)
        return _COLLECTIVES_PER_LAYER * self.model.shape.layers * once

    def _hops_s(self) -> float:
        """A token passes every stage of a pipeline before the next one begins."""
        if self.pipeline == 1 or self.pipeline_link is None:
            return 0.0
        return self.pipeline * (self.pipeline_link.latency_s + self.calibration.collective_s)
