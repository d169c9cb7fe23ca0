"""What a language model is made of, as far as its parameters, operations and cache go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from flexrlhf.core.errors import ConfigError

Matrix = tuple[int, int]
"""Width in and width out of a weight matrix."""


# Without slots: a search asks for the same sums thousands of times, and a dict keeps them.
@dataclass(frozen=True)
class ModelShape:
    """A decoder's sizes.

    A layer has a mixer, which is attention or a recurrence with a constant state, and an MLP, dense
    or of experts. Usually every layer has attention and an MLP of the same kind.

    Raises:
        ConfigError: the numbers contradict each other.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    """Width inside a dense MLP; 0 if there is none."""
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_ffn: int = 0
    tied_embeddings: bool = False
    gated_mlp: bool = True
    """Three matrices (gate, up, down), not two; experts likewise."""
    dense_layers: int = 0
    """Layers with the dense MLP in a model with experts."""
    attention_layers: int | None = None
    """Layers whose cache grows with every token; None: all."""
    cache_values: int | None = None
    """Numbers per token and attention layer in the cache; None: keys and values of `kv_heads`."""
    extra_params: int = 0
    """What is in no matrix: norms, biases, learned positions, convolutions, gates."""
    attention_matrices: tuple[Matrix, ...] = ()
    """Of one attention layer; empty: queries, keys, values and output as the heads say."""
    attention_width: int | None = None
    """Query and value widths of all heads together; None: 2 * heads * head_dim."""
    recurrent_layers: int = 0
    """Layers with a constant state instead of a cache: gated delta-net, Mamba."""
    recurrent_matrices: tuple[Matrix, ...] = ()
    """Of one recurrent layer."""
    state_values: int = 0
    """Numbers in the states of one sequence, all layers together."""
    mlp_layers: int | None = None
    """Layers with an MLP; None: all."""
    shared_ffn: int | None = None
    """Width of all shared experts together; None: shared_experts * expert_ffn."""
    embedding_width: int | None = None
    """Width of the embedding where matrices lead from it to `hidden` and back; None: `hidden`."""
    family: str | None = field(default=None, compare=False)
    """`model_type` of a Hugging Face config; None where only sizes are known."""
    packs: bool = field(default=False, compare=False)
    """Whether a process that has it whole reads packed tokens, a shared prompt once."""

    def __post_init__(self) -> None:
        for wrong, right in self._contradictions():
            raise ConfigError(
                f"The shape {self.name} has {wrong}.", right, "Correct it where it comes from."
            )

    @cached_property
    def num_params(self) -> int:
        """Parameters, the input table and the head included; a tied head counts once."""
        blocks = sum(count * _params(matrices) for count, matrices in self._linear_layers)
        routed = self.expert_layers * (self.experts * self._expert_params + self._router_params)
        tables = self.embedding_params + self.head_params + 2 * self._projection_params
        return tables + blocks + routed + self.extra_params

    @cached_property
    def routed_share(self) -> float:
        """Part of the parameters that are routed experts', of which a token meets a few."""
        return self.expert_layers * self.experts * self._expert_params / self.num_params

    @cached_property
    def num_active_params(self) -> int:
        """Parameters without the experts that a token does not meet."""
        idle = self.experts - self.experts_per_token
        return self.num_params - self.expert_layers * idle * self._expert_params

    @property
    def embedding_params(self) -> int:
        """Parameters of the input table."""
        return self.vocab * self._embedding_width

    @property
    def head_params(self) -> int:
        """Parameters of the head over the vocabulary, 0 where it is the input table."""
        return 0 if self.tied_embeddings else self.embedding_params

    @cached_property
    def layer_params(self) -> float:
        """Parameters per layer, on average; what is outside the layers but no table included."""
        return (self.num_params - self.embedding_params - self.head_params) / self.layers

    @cached_property
    def active_layer_params(self) -> float:
        """Matrix weights that a token meets in a layer, on average."""
        blocks = sum(count * _params(matrices) for count, matrices in self._linear_layers)
        routed = self.experts_per_token * self._expert_params + self._router_params
        return (blocks + self.expert_layers * routed) / self.layers

    @property
    def num_tensors(self) -> int:
        """Weight matrices as files name them: each expert's on its own."""
        listed = sum(count * len(matrices) for count, matrices in self._linear_layers)
        return listed + self.expert_layers * self.experts * len(self._mlp(self.expert_ffn)) + 2

    @property
    def expert_layers(self) -> int:
        """Layers whose MLP is made of experts."""
        return self._mlp_layers - self.dense_layers if self.experts else 0

    @cached_property
    def cache_values_per_token(self) -> int:
        """Numbers that one token adds to the cache, all layers together."""
        own = 2 * self.kv_heads * self.head_dim
        return self._attention_layers * (own if self.cache_values is None else self.cache_values)

    @property
    def cache_heads(self) -> int:
        """Devices over which tensor parallelism can split the cache; a latent cache does not."""
        return self.kv_heads if self.cache_values is None else 1

    def forward_flops(self, tokens: float, context: float, *, with_head: bool = True) -> float:
        """Returns the operations of a forward pass, a multiply-add counted as two.

        tokens * (2 * weights + 2 * attention_width * context * attention layers)

        Norms, activations, softmax, embeddings and the update of recurrent states are left out.
        Sliding windows are not known here: `context` is what the caller makes of them.

        Args:
            tokens: that pass through the model.
            context: positions to which a token attends, on average.
            with_head: whether logits over the vocabulary are computed.

        Source: Megatron-LM (arXiv 2104.04473, appendix), for any matrices.
        """
        per_token, head, per_position = self._flops
        return tokens * (per_token + per_position * context + (head if with_head else 0.0))

    def lora_params(self, rank: int) -> int:
        """Returns the parameters of adapters on all linear layers of the blocks.

        Routed experts and routers get none, as in peft's `all-linear`: transformers holds them as
        stacked tensors. Shared experts do.

        Source: LoRA (arXiv 2106.09685): rank * (width in + width out) for each matrix.
        """
        return rank * sum(
            count * (width_in + width_out)
            for count, matrices in self._linear_layers
            for width_in, width_out in matrices
        )

    @cached_property
    def _flops(self) -> tuple[float, float, float]:
        """Operations per token in the body, per token in the head, per token and position."""
        body = self.layers * self.active_layer_params + self._projection_params
        head = self.embedding_params + self._projection_params
        width = self.attention_width
        width = 2 * self.heads * self.head_dim if width is None else width
        return 2.0 * body, 2.0 * head, 2.0 * width * self._attention_layers

    @cached_property
    def _linear_layers(self) -> tuple[tuple[int, tuple[Matrix, ...]], ...]:
        """How many layers hold which matrices; routers and routed experts left out."""
        query, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        heads = ((self.hidden, query), (self.hidden, keys), (self.hidden, keys))
        shared = self.shared_ffn
        shared = self.shared_experts * self.expert_ffn if shared is None else shared
        return (
            (self._attention_layers, self.attention_matrices or (*heads, (query, self.hidden))),
            (self.recurrent_layers, self.recurrent_matrices),
            (self._mlp_layers - self.expert_layers, self._mlp(self.ffn)),
            (self.expert_layers, self._mlp(shared)),
        )

    def _mlp(self, width: int) -> tuple[Matrix, ...]:
        if not width:
            return ()
        inward = ((self.hidden, width),) * (2 if self.gated_mlp else 1)
        return (*inward, (width, self.hidden))

    @property
    def _expert_params(self) -> int:
        return _params(self._mlp(self.expert_ffn))

    @property
    def _router_params(self) -> int:
        return self.hidden * self.experts

    @property
    def _attention_layers(self) -> int:
        return self.layers if self.attention_layers is None else self.attention_layers

    @property
    def _mlp_layers(self) -> int:
        return self.layers if self.mlp_layers is None else self.mlp_layers

    @property
    def _embedding_width(self) -> int:
        return self.embedding_width or self.hidden

    @property
    def _projection_params(self) -> int:
        """Of the matrix from the embedding to `hidden`; another one leads back."""
        width = self._embedding_width
        return 0 if width == self.hidden else width * self.hidden

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """Says what is wrong, and what would be right."""
        for size in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab"):
            if getattr(self, size) < 1:
                yield f"{size} = {getattr(self, size)}", "It is at least 1."
        if self.kv_heads and self.heads % self.kv_heads:
            yield (
                f"{self.heads} heads and {self.kv_heads} key-value heads",
                "The first is a multiple of the second.",
            )
        if not 0 <= self.experts_per_token <= self.experts:
            yield (
                f"{self.experts_per_token} of {self.experts} experts per token",
                "A token meets at most all experts.",
            )
        if self.experts and not (self.experts_per_token and self.expert_ffn):
            yield (
                f"{self.experts} experts, {self.experts_per_token} of them per token, each "
                f"{self.expert_ffn} wide",
                "Each of these is at least 1.",
            )
        mixers = self._attention_layers + self.recurrent_layers
        if max(mixers, self._mlp_layers) > self.layers or self.dense_layers > self._mlp_layers:
            yield (
                f"{self.layers} layers, {mixers} of them with attention or a recurrence, "
                f"{self._mlp_layers} with an MLP, {self.dense_layers} of these dense",
                "None of these exceeds the one before it in the list of layers.",
            )


def _params(matrices: tuple[Matrix, ...]) -> int:
    return sum(width_in * width_out for width_in, width_out in matrices)
