"""The model families whose layers this package runs itself, over the HF modules.

A family calls the trainer's own sub-modules, so weights are shared by construction, and leaves
attention to the caller: the native engine has a cache for it, scoring and training pack sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor  # noqa: TID251  such parts are not taken
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from flexrlhf.core.model_families import PACKED_FAMILIES, unusual_feature
from flexrlhf.learning.models.output_head import OutputHead, output_head
from flexrlhf.learning.models.rms_norm import rms_normed
from flexrlhf.learning.models.weight_parts import local


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one token of one sequence takes."""

    num_layers: int
    num_kv_heads: int
    head_width: int


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer asks of attention, for the tokens that are being read."""

    layer: int
    queries: Tensor
    """[..., H, K]"""
    keys: Tensor
    """[..., KV heads, K]"""
    values: Tensor
    scaling: float
    """Multiplies the products of queries and keys."""

    @property
    def heads(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        return self.queries, self.keys, self.values

    def asked_at(self, places: Places) -> AttentionCall:
        """Returns the same keys and values, asked for by the queries of some tokens alone."""
        return replace(self, queries=self.queries[places])


Places = tuple[Tensor, ...]
"""An index into the batch shape of tokens, [N] for each of its dimensions."""
Attend = Callable[[AttentionCall], Tensor]
"""Returns [..., H * K]."""


class Family(Protocol):
    """A decoder whose attention is done by the caller; `...` is any batch shape."""

    shape: CacheShape

    def prepare(self, num_positions: int) -> None:
        """Called before tokens at positions below `num_positions` are read."""
        ...

    def hidden(
        self, tokens: Tensor, positions: Tensor, attend: Attend, *, wanted: Places | None = None
    ) -> Tensor:
        """Returns the last layer's output [..., D] for int64 tokens at these positions.

        Args:
            tokens: [...].
            positions: [...].
            attend: is called once for each layer.
            wanted: the tokens whose output is returned, [N, D]. In the last layer attention is then
                asked for their queries alone, [N, H, K], with the keys and values of all tokens.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns [..., V]: the final norm and the language-model head."""
        ...


class WholeFamily(Family, Protocol):
    """One that runs the modules themselves, with gradients."""

    def states(self, hidden: Tensor) -> Tensor:
        """Returns what heads read, [..., D]: the final norm of the last layer's output."""
        ...


class RotaryFamily:
    """Llama, Qwen2 and Qwen3: rotary positions, grouped-query attention, gated MLP.

    Args:
        model: a causal language model or a sequence classifier; only the former has logits.
    """

    def __init__(self, model: nn.Module) -> None:
        whole: Any = model
        config = whole.config
        self._model = whole
        self._trunk = whole.model
        self._normalises_heads = config.model_type == "qwen3"
        attention = self._trunk.layers[0].self_attn
        self._head_width: int = attention.head_dim
        # Under tensor parallelism only some of the heads are here.
        num_kv_heads = len(local(attention.k_proj.weight)) // self._head_width
        self.shape = CacheShape(config.num_hidden_layers, num_kv_heads, self._head_width)
        self._cosines_T1K = self._sines_T1K = torch.empty(0)

    @staticmethod
    def dropout(config: Any) -> float:
        """Returns the largest probability with which training drops anything."""
        return config.attention_dropout

    def prepare(self, num_positions: int) -> None:
        """Makes the table of rotations with the model's own frequencies and scaling."""
        weight = self._trunk.embed_tokens.weight
        positions_1T = torch.arange(num_positions, device=weight.device)[None]
        cosines_1TK, sines_1TK = self._trunk.rotary_emb(weight, positions_1T)
        self._cosines_T1K, self._sines_T1K = cosines_1TK[0, :, None], sines_1TK[0, :, None]

    def hidden(
        self, tokens: Tensor, positions: Tensor, attend: Attend, *, wanted: Places | None = None
    ) -> Tensor:
        """See `Family`."""
        cosines, sines = self._cosines_T1K[positions], self._sines_T1K[positions]

        def run(index: int, layer: Any, hidden: Tensor) -> Tensor:
            attention = layer.self_attn
            normed = rms_normed(layer.input_layernorm, hidden)
            queries = self._heads(attention.q_proj(normed))
            keys = self._heads(attention.k_proj(normed))
            if self._normalises_heads:
                queries = rms_normed(attention.q_norm, queries)
                keys = rms_normed(attention.k_norm, keys)
            call = AttentionCall(
                index,
                _rotate(queries, cosines, sines),
                _rotate(keys, cosines, sines),
                self._heads(attention.v_proj(normed)),
                attention.scaling,
            )
            if wanted is not None and index == self.shape.num_layers - 1:
                hidden, call = hidden[wanted], call.asked_at(wanted)
            hidden = hidden + attention.o_proj(attend(call))
            return hidden + layer.mlp(rms_normed(layer.post_attention_layernorm, hidden))

        return _through(self._trunk.layers, run, self._trunk.embed_tokens(tokens))

    def states(self, hidden: Tensor) -> Tensor:
        """Returns what heads read, [..., D]: the final norm of the last layer's output."""
        return rms_normed(self._trunk.norm, hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Family`."""
        return self._head.logits(self.states(hidden))

    @cached_property
    def _head(self) -> OutputHead:
        return output_head(self._model)

    def _heads(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (-1, self._head_width))


class Gpt2Family:
    """GPT-2: learned positions, one projection for queries, keys and values.

    Args:
        model: a causal language model or a sequence classifier; only the former has logits.
    """

    def __init__(self, model: nn.Module) -> None:
        whole: Any = model
        config = whole.config
        self._model = whole
        self._trunk = whole.transformer
        self._head_width: int = config.n_embd // config.n_head
        self.shape = CacheShape(config.n_layer, config.n_head, self._head_width)

    @staticmethod
    def dropout(config: Any) -> float:
        """Returns the largest probability with which training drops anything."""
        return max(config.embd_pdrop, config.attn_pdrop, config.resid_pdrop)

    def prepare(self, num_positions: int) -> None:
        """Positions are learned: nothing to prepare."""

    def hidden(
        self, tokens: Tensor, positions: Tensor, attend: Attend, *, wanted: Places | None = None
    ) -> Tensor:
        """See `Family`."""

        def run(index: int, block: Any, hidden: Tensor) -> Tensor:
            attention = block.attn
            projected = attention.c_attn(block.ln_1(hidden)).chunk(3, dim=-1)
            queries, keys, values = (
                part.unflatten(-1, (-1, self._head_width)) for part in projected
            )
            call = AttentionCall(index, queries, keys, values, attention.scaling)
            if wanted is not None and index == self.shape.num_layers - 1:
                hidden, call = hidden[wanted], call.asked_at(wanted)
            hidden = hidden + attention.c_proj(attend(call))
            return hidden + block.mlp(block.ln_2(hidden))

        embedded = self._trunk.wte(tokens) + self._trunk.wpe(positions)
        return _through(self._trunk.h, run, embedded)

    def states(self, hidden: Tensor) -> Tensor:
        """Returns what heads read, [..., D]: the final norm of the last layer's output."""
        return self._trunk.ln_f(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Family`."""
        return self._head.logits(self.states(hidden))

    @cached_property
    def _head(self) -> OutputHead:
        return output_head(self._model)


FAMILIES: Final[Mapping[str, type[RotaryFamily] | type[Gpt2Family]]] = {
    "LlamaForCausalLM": RotaryFamily,
    "Qwen2ForCausalLM": RotaryFamily,
    "Qwen3ForCausalLM": RotaryFamily,
    "GPT2LMHeadModel": Gpt2Family,
}
"""Model class to family. Other classes may differ in any detail and are not guessed at."""
_TRUNKS: Final[Mapping[str, tuple[type[RotaryFamily] | type[Gpt2Family], str, str]]] = {
    "llama": (RotaryFamily, "LlamaModel", "LlamaDecoderLayer"),
    "qwen2": (RotaryFamily, "Qwen2Model", "Qwen2DecoderLayer"),
    "qwen3": (RotaryFamily, "Qwen3Model", "Qwen3DecoderLayer"),
    "gpt2": (Gpt2Family, "GPT2Model", "GPT2Block"),
}
"""Of each of `PACKED_FAMILIES` how it runs, and the classes of its trunk and layers."""


def unsupported_reason(model: nn.Module) -> str | None:
    """Returns why no family decodes `model`, or None."""
    class_name = type(model).__name__
    if class_name not in FAMILIES:
        return f"{class_name} is none of {', '.join(FAMILIES)}"
    feature = unusual_feature(vars(model.config))
    return f"this {class_name} uses {feature}" if feature else None


def trainable_family(model: nn.Module) -> WholeFamily | None:
    """Returns the family that computes and differentiates as the model's own trunk does, or None.

    Whatever is done to whole layers does not happen in a family, which calls their parts: hooks,
    gathering, sums over processes. A model that has any of it is not taken.

    Args:
        model: a causal language model or a sequence classifier.
    """
    whole: Any = model
    if whole.config.model_type not in PACKED_FAMILIES:
        return None
    family, trunk_class, layer_class = _TRUNKS[whole.config.model_type]
    if type(whole.base_model).__name__ != trunk_class or unusual_feature(vars(whole.config)):
        return None
    if model.training and family.dropout(whole.config):
        return None
    layers = whole.base_model.h if family is Gpt2Family else whole.base_model.layers
    for layer in layers:
        if type(layer).__name__ != layer_class or _is_hooked(layer):
            return None
        if _is_hooked(layer.attn if family is Gpt2Family else layer.self_attn):
            return None
    is_split = any(isinstance(parameter, DTensor) for parameter in whole.parameters())
    return None if is_split or _is_hooked(whole.base_model) else family(model)


def _is_hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _through(
    layers: nn.ModuleList, run: Callable[[int, Any, Tensor], Tensor], hidden: Tensor
) -> Tensor:
    """Takes hidden states through the layers, those again backward that were told to."""
    for index, layer in enumerate(layers):
        if getattr(layer, "gradient_checkpointing", False) and layer.training:
            hidden = checkpoint(
                run, index, layer, hidden, use_reentrant=False, preserve_rng_state=False
            )
        else:
            hidden = run(index, layer, hidden)
    return hidden


def _rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turns the pairs (i, i + K/2) of each head by the position's angles."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat((-second, first), dim=-1) * sines
