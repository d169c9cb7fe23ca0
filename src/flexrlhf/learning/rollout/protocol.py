"""What every rollout engine can be asked for, and the values that go in and come out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar, get_args

from torch import Tensor

from flexrlhf.core.errors import ConfigError
from flexrlhf.core.names import EngineName
from flexrlhf.learning.models.shards import Shard
from flexrlhf.learning.rollout.prompt_counts import PromptCounts
from flexrlhf.learning.rollout.speculation_counts import SpeculationCounts

T = TypeVar("T")

EngineMemory = Literal["weights", "cache"]
"""What an engine keeps on its device; `weights` wake first, so that new ones can be installed while
the memory of `cache` is still free."""
ENGINE_MEMORY: Final[tuple[EngineMemory, ...]] = get_args(EngineMemory)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn from the model's distribution.

    Raises:
        ConfigError: a value is out of range.
    """

    max_new_tokens: int
    temperature: float = 1.0
    """Divides the logits; above 0."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens that holds this probability, after `top_k`."""
    min_new_tokens: int = 0
    """End tokens are not drawn before so many tokens."""
    greedy: bool = False
    """Take the most likely token; `temperature` then only scales `logprobs`."""
    seed: int = 0
    end_tokens: tuple[int, ...] = ()
    """A drawn token of these ends its sequence and belongs to it."""

    def __post_init__(self) -> None:
        checks = {
            "max_new_tokens": ("at least 1", self.max_new_tokens >= 1),
            "temperature": ("above 0; set greedy for the best token", self.temperature > 0),
            "top_k": ("0 (off) or above", self.top_k >= 0),
            "top_p": ("above 0 and at most 1 (off)", 0 < self.top_p <= 1),
            "min_new_tokens": (
                "from 0 to max_new_tokens",
                0 <= self.min_new_tokens <= self.max_new_tokens,
            ),
        }
        for name, (allowed, is_allowed) in checks.items():
            if not is_allowed:
                raise ConfigError(
                    f"rollout.{name} = {getattr(self, name)} is out of range.",
                    f"It must be {allowed}.",
                    f"Change rollout.{name}.",
                )

    @property
    def filters(self) -> bool:
        """Whether top-k or top-p may leave tokens out."""
        return self.top_k > 0 or self.top_p < 1


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and the answers wanted for it; the group shares the prompt."""

    prompt_tokens: tuple[int, ...]
    sample_ids: tuple[int, ...]
    """One per answer, unique in the run; with the seed it decides the answer's random numbers."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer; the sequences are aligned with each other and exclude the prompt."""

    sample_id: int
    tokens: tuple[int, ...]
    """The response, its end token included when it finished."""
    logprobs: tuple[float, ...]
    """Of the full softmax of logits / temperature, nats: what losses use."""
    sampling_logprobs: tuple[float, ...]
    """Of the distribution drawn from, after top-k and top-p: the behaviour policy; 0 if greedy."""
    finished: bool
    """Ended with an end token; False when cut at `max_new_tokens`."""
    weight_version: int


OnFinished = Callable[[Generation], None]
"""Is given an answer as soon as it ends, while longer ones go on."""


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What an engine offers, for those who choose or drive one."""

    name: EngineName
    families: tuple[str, ...]
    """Model classes it runs; empty: any causal language model."""
    shares_weights: bool
    """Reads the trainer's own tensors, so that an optimiser step is visible at once."""
    supports_release: bool
    """`release_memory` gives memory back to other work on the device."""
    is_collective: bool = False
    """Its weights lie in parts in several replicas: all of them call `generate` equally often,
    those without a request too."""


class AnswerStream(Protocol):
    """Answers in the order in which they end: they wait while nobody takes any.

    A stream holds its cache until its last answer has ended.
    """

    @property
    def num_left(self) -> int:
        """Answers that were not taken yet."""
        ...

    def take(self, count: int, on_finished: OnFinished | None = None) -> list[Generation]:
        """Generates until `count` more answers have ended, and returns those.

        Args:
            count: at most `num_left`.
            on_finished: as for `RolloutEngine.generate`; hears of answers beyond `count` too, where
                they end with the same token.

        Raises:
            DataError: a prompt is empty, too long or outside the vocabulary, or an id repeats.
            StaleWeights: there are no weights of one whole version, or those of the first `take`
                are gone.
            FlexError: memory was released and not regained.
        """
        ...


class RolloutEngine(Protocol):
    """Generates answers with one version of the weights."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """What this engine offers."""
        ...

    @property
    def weight_version(self) -> int:
        """The version of the weights it generates with."""
        ...

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        on_finished: OnFinished | None = None,
    ) -> list[Generation]:
        """Answers every request.

        A sample's tokens depend on the weights, its prompt, `sampling` and its id, not on the
        batch it is in (up to the rounding of matrix products). The processes of a tensor-parallel
        replica all call this with the same arguments and all get the answers.

        Args:
            requests: prompts and the ids of their answers.
            sampling: how tokens are drawn.
            on_finished: is given each answer the moment it ends, in no promised order. It is called
                in the thread that generates, which waits for it.

        Returns:
            One generation per sample id, in the order requested.

        Raises:
            DataError: a prompt is empty, too long or outside the vocabulary, or an id repeats.
            StaleWeights: there are no weights of one whole version.
            FlexError: memory was released and not regained.
        """
        ...

    def stream(
        self, requests: Sequence[Request], sampling: Sampling, *, at_once: int | None = None
    ) -> AnswerStream:
        """Returns the same answers one by one, as they end; they begin with the first `take`.

        Args:
            requests: prompts and the ids of their answers, in the order in which they begin.
            sampling: how tokens are drawn.
            at_once: answers generated at one time, fewer than the engine would; None: as many.
        """
        ...

    def take_counts(self) -> SpeculationCounts:
        """Returns what was proposed and drawn since the last call; zeros without speculation."""
        ...

    def take_prompt_counts(self) -> PromptCounts:
        """Returns how much of prompts was read since the last call; zeros if no prefix is kept."""
        ...

    def targets(self) -> dict[str, Shard]:
        """Returns the engine's own tensors, for whoever writes new weights into them.

        Names and boxes are those of the whole model, tied tensors come once. They are the same
        tensors until the engine ends; what they hold between `release_memory` and `regain_memory`
        is undefined.

        Raises:
            FlexError: the weights were released and not regained.
        """
        ...

    def install(self, version: int, write: Callable[[], T]) -> T:
        """Lets `write` fill `targets()`; the engine holds `version` once it returns.

        While it runs, and after it raised, the engine generates nothing.

        Args:
            version: of the new weights.
            write: fills every target.

        Returns:
            What `write` returned.

        Raises:
            FlexError: the weights were released and not regained.
        """
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Installs whole weights in place under their state-dict names.

        An engine that shares the trainer's weights takes an empty iterable as "the same tensors,
        now of this version".

        Raises:
            StaleWeights: a name is unknown or missing.
            ShapeError: a tensor has another shape than the model's.
        """
        ...

    def release_memory(self, *, keep_weights: bool = True) -> None:
        """Gives caches, kept prefixes, and weights that nobody shares, back to the device.

        Args:
            keep_weights: keep a copy in host memory; without one, the next version must be
                installed before anything is generated.
        """
        ...

    def regain_memory(self, memory: Collection[EngineMemory] = ENGINE_MEMORY) -> None:
        """Makes the engine ready again: first `weights`, to install new ones, then `cache`."""
        ...
