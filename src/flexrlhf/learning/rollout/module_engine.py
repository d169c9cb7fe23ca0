"""What the in-process engines have in common: streams, weights, memory, evaluation mode."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from flexrlhf.core.errors import ConfigError, FlexError, StaleWeights
from flexrlhf.core.names import EngineName, RolloutWeights
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.parallelise import ParallelModel
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.rollout.decoding import Decoder, Decoding, Room
from flexrlhf.learning.rollout.lockstep import RunPass, lockstep
from flexrlhf.learning.rollout.prefix_keeper import PrefixKeeper, check_keeping
from flexrlhf.learning.rollout.prompt_counts import PromptCounts
from flexrlhf.learning.rollout.protocol import (
    ENGINE_MEMORY,
    AnswerStream,
    EngineCapabilities,
    EngineMemory,
    Generation,
    OnFinished,
    Request,
    Sampling,
)
from flexrlhf.learning.rollout.rounding import check_rounding
from flexrlhf.learning.rollout.speculation.drafter import Drafter, RunDecoder
from flexrlhf.learning.rollout.speculation.settings import Speculation, check_speculation
from flexrlhf.learning.rollout.speculation.speculative_decoding import SpeculativeDecoding
from flexrlhf.learning.rollout.speculation_counts import SpeculationCounts
from flexrlhf.learning.rollout.streaming import EngineStream
from flexrlhf.learning.rollout.waves import check_requests
from flexrlhf.learning.rollout.weight_loading import load_in_place
from flexrlhf.learning.rollout.weight_memory import WeightMemory

T = TypeVar("T")


class ModuleEngine(ABC):
    """An engine over a Hugging Face causal language model in this process.

    Weights that ZeRO shards over replicas are gathered once for each `generate`, or, with
    `gathers_per_token`, layer by layer in every pass, so that they are never here as a whole.

    Args:
        model: read in place; an optimiser step on it is visible in the next call. May be a part of
            a model that is split over processes, or a `SharedActorCritic`.
        max_sequences: answers generated at one time; the others wait for room.
        shares_weights: the trainer holds the same module, so releasing memory must not move it.
        weight_version: of the model's present weights.
        has_weights: False: the model's tensors hold nothing yet, a version is installed first.
        gathers_per_token: how weights that lie in several replicas are present.
        packs_weights: the engine may copy weights, while it generates, to read them faster.
        captures_steps: on a GPU the engine may capture decode steps and repeat them.
        weights: what it multiplies by; int8: a copy that it rounds whenever answers begin.
        speculation: several tokens of an answer are tried at a time; None: one.
        kept_prefix_tokens: of prompts and answers whose keys and values are kept for prompts that
            begin alike, until weights change: by a step of a `torch.optim` optimiser, by what
            PyTorch counts, or as `install` and `load_weights` are told. Writing through
            `Tensor.data` is none of these.

    Raises:
        ConfigError: the engine does not run such a model, does not speculate, does not multiply by
            such weights, or keeps no prefixes.
    """

    name: ClassVar[EngineName]
    families: ClassVar[tuple[str, ...]]
    speculates: ClassVar[bool]
    """Whether `_decoder` makes a `RunDecoder`."""
    rounds: ClassVar[bool]
    """Whether it can multiply by weights in int8."""
    keeps: ClassVar[bool]
    """Whether it can keep prefixes."""

    def __init__(
        self,
        model: nn.Module | ParallelModel,
        *,
        max_sequences: int = 256,
        shares_weights: bool = True,
        weight_version: int = 0,
        has_weights: bool = True,
        gathers_per_token: bool = False,
        packs_weights: bool = True,
        captures_steps: bool = False,
        weights: RolloutWeights = "same",
        speculation: Speculation | None = None,
        kept_prefix_tokens: int = 0,
    ) -> None:
        self._packs_weights = packs_weights
        self._captures_steps = captures_steps
        self._rounds_weights = weights == "int8"
        self._speculation = speculation
        self._counts = SpeculationCounts()
        self._parallel = model if isinstance(model, ParallelModel) else ParallelModel(model)
        self._gathers_per_token = gathers_per_token and self._parallel.needs_lockstep
        reason = self.unsupported_reason(self._model, gathers_per_token=self._gathers_per_token)
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
        if speculation is not None:
            check_speculation(
                speculation,
                self._model,
                engine=self.name,
                speculates=self.speculates,
                unsupported_reason=self.unsupported_reason,
            )
        if self._rounds_weights:
            check_rounding(
                self._model,
                engine=self.name,
                rounds=self.rounds,
                speculates=speculation is not None,
            )
        check_keeping(
            kept_prefix_tokens,
            engine=self.name,
            keeps=self.keeps,
            rounds=self._rounds_weights,
            is_split=self._parallel.mesh is not None,
        )
        self._keeper = PrefixKeeper(kept_prefix_tokens) if kept_prefix_tokens else None
        self._max_sequences = max_sequences
        self._shares_weights = shares_weights
        self._awake: set[EngineMemory] = set(ENGINE_MEMORY)
        self._content: Literal["one version", "several", "none"] = (
            "one version" if has_weights else "none"
        )
        self._memory: WeightMemory | None = None
        self._in_use = threading.Lock()
        """So that weights neither change nor go while another thread generates with them."""
        self.weight_version = weight_version

    @classmethod
    @abstractmethod
    def unsupported_reason(cls, model: nn.Module, *, gathers_per_token: bool = False) -> str | None:
        """Returns why the engine cannot run `model`, or None."""

    @abstractmethod
    def _decoder(self, room: Room, run: RunPass) -> Decoder:
        """Returns the model with room for sequences; its caches live as long as it does.

        Args:
            room: that they may need.
            run: makes a pass of whole layers.
        """

    @abstractmethod
    def _drafter(self, room: Room, sampling: Sampling) -> Drafter:
        """Returns what proposes tokens where the engine speculates.

        Args:
            room: that the decoder has.
            sampling: how answers are drawn.
        """

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine offers."""
        return EngineCapabilities(
            self.name,
            self.families,
            self._shares_weights,
            supports_release=True,
            is_collective=self._parallel.needs_lockstep,
        )

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        on_finished: OnFinished | None = None,
    ) -> list[Generation]:
        """See `RolloutEngine`."""
        stream = self.stream(requests, sampling)
        answers = {one.sample_id: one for one in stream.take(stream.num_left, on_finished)}
        return [answers[sample_id] for request in requests for sample_id in request.sample_ids]

    def stream(
        self, requests: Sequence[Request], sampling: Sampling, *, at_once: int | None = None
    ) -> AnswerStream:
        """See `RolloutEngine`."""
        most = min(at_once or self._max_sequences, self._max_sequences)
        num_answers = sum(len(request.sample_ids) for request in requests)
        begin = partial(self._begin, requests, sampling, most)
        return EngineStream(num_answers, begin, self._running, lambda: self.weight_version)

    @contextmanager
    def _running(self) -> Iterator[RunPass]:
        """What holds while answers are generated; gives what makes a pass."""
        with self._in_use:
            self._check_ready()
            if self._keeper is not None:
                self._keeper.check(self._model, self.weight_version)
            draft = self._speculation.draft if self._speculation else None
            models = [self._model] if draft is None else [self._model, draft]
            with self._gradient_free(), _without_dropout(*models), self._present() as run:
                yield run

    def take_counts(self) -> SpeculationCounts:
        """See `RolloutEngine`."""
        return self._counts.take()

    def take_prompt_counts(self) -> PromptCounts:
        """See `RolloutEngine`."""
        return PromptCounts() if self._keeper is None else self._keeper.counts.take()

    def _begin(
        self, requests: Sequence[Request], sampling: Sampling, at_once: int, run: RunPass
    ) -> Decoding | SpeculativeDecoding:
        """Returns the answers to checked requests, of which none has begun."""
        self._check_requests(requests, sampling)
        speculation = self._speculation
        num_answers = sum(len(request.sample_ids) for request in requests)
        room = Room(
            rows=min(at_once, num_answers),
            prompt_tokens=max((len(request.prompt_tokens) for request in requests), default=0),
            new_tokens=sampling.max_new_tokens,
            read_tokens=1 if speculation is None else 1 + speculation.most_proposed,
        )
        decoder = self._decoder(room, run)
        if speculation is None:
            return Decoding(
                decoder, requests, sampling, weight_version=self.weight_version, at_once=at_once
            )
        assert isinstance(decoder, RunDecoder), "an engine that says so speculates"
        return SpeculativeDecoding(
            decoder,
            self._drafter(room, sampling),
            requests,
            sampling,
            weight_version=self.weight_version,
            at_once=at_once,
            most_proposed=speculation.most_proposed,
            counts=self._counts,
        )

    def targets(self) -> dict[str, Shard]:
        """See `RolloutEngine`."""
        self._check_awake("weights")
        return self._parallel.shards()

    def install(self, version: int, write: Callable[[], T]) -> T:
        """See `RolloutEngine`. A stream that was begun before is never gone on with."""
        self._check_awake("weights")
        with self._in_use:
            self._content = "several"
            self._drop_prefixes()
            written = write()
            self._parallel.weights_changed()
            self._content = "one version"
            self.weight_version = version
        return written

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `RolloutEngine`."""
        weights = list(weights) if self._shares_weights else weights
        if weights == []:
            with self._in_use:
                self._drop_prefixes()
                self.weight_version = version
        else:
            self.install(version, lambda: load_in_place(self.targets(), weights))

    def release_memory(self, *, keep_weights: bool = True) -> None:
        """See `RolloutEngine`."""
        with self._in_use:
            if "weights" in self._awake and not self._shares_weights:
                held = self._parallel.shards().values()
                self._memory = WeightMemory(shard.tensor for shard in held)
                self._memory.release(keep=keep_weights)
                if not keep_weights:
                    self._content = "none"
            self._drop_prefixes()
            self._awake.clear()
        if self._parallel.device.type == "cuda":
            torch.cuda.empty_cache()

    def regain_memory(self, memory: Collection[EngineMemory] = ENGINE_MEMORY) -> None:
        """See `RolloutEngine`."""
        if "weights" in memory and self._memory is not None:
            self._memory.regain()
            self._memory = None
        self._awake.update(memory)

    def _drop_prefixes(self) -> None:
        if self._keeper is not None:
            self._keeper.drop()

    @property
    def _model(self) -> nn.Module:
        """The causal language model, without a value head."""
        return pretrained(self._parallel.module)

    @property
    def _device(self) -> torch.device:
        return self._parallel.device

    @contextmanager
    def _present(self) -> Iterator[RunPass]:
        """The weights are present: all the time, or in passes that all replicas make together."""
        if self._gathers_per_token:
            with lockstep(self._parallel) as run:
                yield run
        else:
            with self._parallel.gathered():
                yield self._parallel.run

    def _gradient_free(self) -> torch.inference_mode | torch.no_grad:
        # What FSDP gathers in inference mode could not be trained with later.
        return torch.no_grad() if self._parallel.needs_lockstep else torch.inference_mode()

    def _check_requests(self, requests: Sequence[Request], sampling: Sampling) -> None:
        config: Any = self._model.config
        check_requests(
            requests,
            max_new_tokens=sampling.max_new_tokens,
            vocabulary_size=config.vocab_size,
            max_positions=getattr(config, "max_position_embeddings", None),
        )

    def _check_awake(self, *memory: EngineMemory) -> None:
        asleep = [name for name in memory if name not in self._awake]
        if asleep:
            raise FlexError(
                f"The rollout engine's memory for {' and '.join(asleep)} is released.",
                "It must be regained before it is used.",
                "Call regain_memory() first.",
            )

    def _check_ready(self) -> None:
        self._check_awake(*ENGINE_MEMORY)
        if self._content == "several":
            raise StaleWeights(
                "The last load of weights failed half-way, so old and new are mixed.",
                "All tensors must be of one version.",
                "Load a complete state dict.",
            )
        if self._content == "none":
            raise StaleWeights(
                "The rollout engine has memory for weights, but none in it.",
                "A version of the weights must be installed before generating.",
                "Install one, or keep the weights when memory is released.",
            )


@contextmanager
def _without_dropout(*models: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; each module's own mode is restored after."""
    training = [module for model in models for module in model.modules() if module.training]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
