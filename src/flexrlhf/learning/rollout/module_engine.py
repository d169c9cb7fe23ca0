"""What the in-process engines have in common: waves, weights, memory, evaluation mode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flexrlhf.core.errors import ConfigError, FlexError, StaleWeights
from flexrlhf.core.names import EngineName
from flexrlhf.learning.rollout.decoding import Decoder, decode
from flexrlhf.learning.rollout.protocol import (
    EngineCapabilities,
    Generation,
    Request,
    Sampling,
)
from flexrlhf.learning.rollout.waves import Wave, check_requests, cut_into_waves
from flexrlhf.learning.rollout.weight_loading import load_in_place


class ModuleEngine(ABC):
    """An engine over a Hugging Face causal language model in this process.

    Args:
        model: read in place; an optimiser step on it is visible in the next call.
        max_sequences: answers generated at one time; the others wait for the next wave.
        shares_weights: the trainer holds the same module, so releasing memory must not move it.
        weight_version: of the model's present weights.
    """

    name: ClassVar[EngineName]
    families: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        model: nn.Module,
        *,
        max_sequences: int = 256,
        shares_weights: bool = True,
        weight_version: int = 0,
    ) -> None:
        reason = self.unsupported_reason(model)
        if reason is not None:
            raise ConfigError(
                f"The {self.name} engine cannot run this model: {reason}.",
                "Every engine runs causal language models; native knows a few families.",
                "Choose another rollout.engine.",
            )
        if max_sequences < 1:
            raise ConfigError(
                f"max_sequences = {max_sequences} lets nothing be generated.",
                "It must be at least 1.",
                "Change rollout.max_sequences.",
            )
        self._model = model
        self._max_sequences = max_sequences
        self._shares_weights = shares_weights
        self._home = self._device
        self._is_released = False
        self._is_half_loaded = False
        self.weight_version = weight_version

    @classmethod
    @abstractmethod
    def unsupported_reason(cls, model: nn.Module) -> str | None:
        """Returns why the engine cannot run `model`, or None."""

    @abstractmethod
    def _decoder(self, wave: Wave, max_new_tokens: int) -> Decoder:
        """Returns the wave inside the model; its caches live as long as it does."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine offers."""
        return EngineCapabilities(
            self.name, self.families, self._shares_weights, supports_release=True
        )

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Generation]:
        """See `RolloutEngine`."""
        self._check_ready()
        config: Any = self._model.config
        check_requests(
            requests,
            max_new_tokens=sampling.max_new_tokens,
            vocabulary_size=config.vocab_size,
            max_positions=getattr(config, "max_position_embeddings", None),
        )
        by_id: dict[int, Generation] = {}
        with _without_dropout(self._model):
            for wave in cut_into_waves(requests, self._max_sequences):
                decoder = self._decoder(wave, sampling.max_new_tokens)
                answers = decode(decoder, wave.sample_ids, sampling, self.weight_version)
                by_id.update((answer.sample_id, answer) for answer in answers)
        return [by_id[sample_id] for request in requests for sample_id in request.sample_ids]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `RolloutEngine`. No cache outlives `generate`, so none is left of the old version."""
        weights = list(weights) if self._shares_weights else weights
        if weights != []:
            self._is_half_loaded = True
            load_in_place(self._model, weights)
            self._is_half_loaded = False
        self.weight_version = version

    def release_memory(self) -> None:
        """Gives freed caches back to the device and moves weights that nobody shares to the CPU."""
        self._is_released = True
        if not self._shares_weights:
            self._model.to("cpu")
        if self._home.type == "cuda":
            torch.cuda.empty_cache()

    def regain_memory(self) -> None:
        """Moves the weights back; generating is possible again."""
        if not self._shares_weights:
            self._model.to(self._home)
        self._is_released = False

    @property
    def _device(self) -> torch.device:
        return next(self._model.parameters()).device

    def _check_ready(self) -> None:
        if self._is_released:
            raise FlexError(
                "The rollout engine's memory is released.",
                "It must be regained before generating.",
                "Call regain_memory() first.",
            )
        if self._is_half_loaded:
            raise StaleWeights(
                "The last load of weights failed half-way, so old and new are mixed.",
                "All tensors must be of one version.",
                "Load a complete state dict.",
            )


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; each module's own mode is restored after."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
