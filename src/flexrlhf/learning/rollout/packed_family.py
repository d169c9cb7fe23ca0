"""Llama, Qwen2 and Qwen3 over packed copies of their weights, for float32 on the CPU.

A decode step of a small model is as long as its matrix products and its many small operations take.
So weights that read the same input are one product, norm weights are multiplied into the products
behind them, residuals are added inside products, and the pairs of numbers that a rotation turns
lie side by side, where one complex multiplication turns all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, silu

from flexrlhf.learning.models.families import Attend, AttentionCall, CacheShape, Places
from flexrlhf.learning.models.output_head import output_head
from flexrlhf.learning.rollout.int8_linear import Int8Linear
from flexrlhf.learning.rollout.packed_linear import PackedLinear, can_pack, is_read_as_it_lies

_PROJECTIONS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_in: PackedLinear | Int8Linear
    """To the heads of queries, keys and values."""
    head_norm_HK: Tensor | None
    """Multiplies the normed heads of queries and keys, where the family norms them."""
    attention_out: PackedLinear | Int8Linear
    mlp_in: PackedLinear | Int8Linear
    """To gate and up."""
    mlp_out: PackedLinear | Int8Linear


@dataclass(frozen=True, slots=True)
class _Heads:
    """Views of one product, [..., (heads of queries, keys, values) * K]."""

    flat: Tensor
    all: Tensor
    """[..., heads, K]."""
    turned: Tensor
    """Of queries and keys."""
    turned_pairs: Tensor
    """The same as complex numbers, [..., heads, K / 2]."""


@dataclass(frozen=True, slots=True)
class _StepPlace:
    """Where the products of every layer of a step are written, one layer after the other.

    Views are made once: as many as a layer needs, they take longer than most of its operations.
    """

    heads: _Heads
    calls: Sequence[AttentionCall]
    """Of each layer, with these heads."""
    gates: Tensor
    """[B, 2 I]."""
    gate_and_up: tuple[Tensor, Tensor]
    """Of `gates`."""


class PackedRotaryFamily:
    """See `Family`, with the weights at the moment of making: copies are never renewed.

    Args:
        model: one that `unpackable_reason` finds nothing against.
        rows: answers that are written at one time, at most.
        rounds: the copies are rounded to int8.
    """

    def __init__(self, model: nn.Module, *, rows: int, rounds: bool = False) -> None:
        causal_lm: Any = model
        self._rounds = rounds
        self._linear = Int8Linear if rounds else partial(PackedLinear, rows=rows)
        config = causal_lm.config
        self._trunk = causal_lm.model
        attention = self._trunk.layers[0].self_attn
        self._head_width: int = attention.head_dim
        self._num_heads: int = config.num_attention_heads
        self._num_kv_heads: int = config.num_key_value_heads
        self._num_turned = self._num_heads + self._num_kv_heads
        self._mlp_width: int = config.intermediate_size
        self._scaling: float = attention.scaling
        epsilon: float = config.rms_norm_eps
        self._floor = torch.tensor((config.hidden_size * epsilon) ** 0.5)
        self._head_floor = torch.tensor((self._head_width * epsilon) ** 0.5)
        self.shape = CacheShape(
            config.num_hidden_layers, config.num_key_value_heads, self._head_width
        )
        self._place: _StepPlace | None = None
        self._workbench: Tensor | None = None
        """Where weights are put together that get another layout; in the processor's cache."""
        if rounds or not is_read_as_it_lies(rows):
            self._workbench = torch.empty(_largest_product(self._trunk.layers[0]))
        self._layers = [self._packed(layer) for layer in self._trunk.layers]
        self._workbench = None
        head = output_head(causal_lm)
        self._head = self._linear(head.weight, head.bias, is_kept=True)
        assert head.multiplier == 1, "these families' logits are not scaled"
        self._last_norm_D = _norm_scale(self._trunk.norm)
        self._rotations_T1P = torch.empty(0, dtype=torch.complex64)

    def prepare(self, num_positions: int) -> None:
        """Makes the table of rotations with the model's own frequencies and scaling."""
        weight = self._trunk.embed_tokens.weight
        cosines_1TK, sines_1TK = self._trunk.rotary_emb(weight, torch.arange(num_positions)[None])
        num_pairs = self._head_width // 2  # the second half repeats the first
        self._rotations_T1P = torch.complex(
            cosines_1TK[0, :, None, :num_pairs], sines_1TK[0, :, None, :num_pairs]
        )

    def hidden(
        self, tokens: Tensor, positions: Tensor, attend: Attend, *, wanted: Places | None = None
    ) -> Tensor:
        """See `Family`."""
        rotations = self._rotations_T1P[positions]
        hidden = embedding(tokens, self._trunk.embed_tokens.weight)
        place = self._step_place(len(tokens)) if tokens.dim() == 1 else None
        heads_out, gates_out = (None, None) if place is None else (place.heads.flat, place.gates)
        for index, layer in enumerate(self._layers):
            flat = layer.attention_in(_normed(hidden, self._floor), out=heads_out)
            placed = place if flat is heads_out else None
            heads = self._heads(flat) if placed is None else placed.heads
            if layer.head_norm_HK is not None:
                normed = _normed(heads.turned, self._head_floor)
                heads.turned.copy_(normed * layer.head_norm_HK)
            heads.turned_pairs.mul_(rotations)
            call = self._call(index, heads) if placed is None else placed.calls[index]
            if wanted is not None and index == self.shape.num_layers - 1:
                hidden, call = hidden[wanted], call.asked_at(wanted)
            hidden = layer.attention_out.added_to(hidden, attend(call))
            both = layer.mlp_in(_normed(hidden, self._floor), out=gates_out)
            placed = place if both is gates_out else None
            gate, up = self._gate_and_up(both) if placed is None else placed.gate_and_up
            hidden = layer.mlp_out.added_to(hidden, silu(gate).mul_(up))
        return hidden

    def _step_place(self, num_tokens: int) -> _StepPlace:
        """Returns where a step of so many tokens leaves its products; the last one is kept."""
        if self._place is None or len(self._place.gates) != num_tokens:
            num_heads = self._num_turned + self._num_kv_heads
            heads = self._heads(torch.empty(num_tokens, num_heads * self._head_width))
            gates = torch.empty(num_tokens, 2 * self._mlp_width)
            calls = [self._call(index, heads) for index in range(len(self._layers))]
            self._place = _StepPlace(heads, calls, gates, self._gate_and_up(gates))
        return self._place

    def _heads(self, flat: Tensor) -> _Heads:
        heads = flat.unflatten(-1, (-1, self._head_width))
        turned = heads.narrow(-2, 0, self._num_turned)
        return _Heads(flat, heads, turned, torch.view_as_complex(turned.unflatten(-1, (-1, 2))))

    def _call(self, layer: int, heads: _Heads) -> AttentionCall:
        return AttentionCall(
            layer,
            heads.all.narrow(-2, 0, self._num_heads),
            heads.all.narrow(-2, self._num_heads, self._num_kv_heads),
            heads.all.narrow(-2, self._num_turned, self._num_kv_heads),
            self._scaling,
        )

    def _gate_and_up(self, both: Tensor) -> tuple[Tensor, Tensor]:
        width = self._mlp_width
        return both.narrow(-1, 0, width), both.narrow(-1, width, width)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Family`."""
        return self._head(_normed(hidden, self._floor) * self._last_norm_D)

    def _packed(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        weights: list[Tensor] = []
        biases: list[Tensor | None] = []
        for projection in (attention.q_proj, attention.k_proj):
            weights.append(_pairs_beside(projection.weight, self._head_width))
            bias = projection.bias
            biases.append(None if bias is None else _side_by_side(bias, self._head_width))
        weights.append(attention.v_proj.weight)
        biases.append(attention.v_proj.bias)
        return _Layer(
            self._behind_norm(layer.input_layernorm, weights, biases),
            self._head_norm(attention),
            self._linear(attention.o_proj.weight, attention.o_proj.bias, is_kept=True),
            self._behind_norm(
                layer.post_attention_layernorm,
                [mlp.gate_proj.weight, mlp.up_proj.weight],
                [mlp.gate_proj.bias, mlp.up_proj.bias],
            ),
            self._linear(mlp.down_proj.weight, mlp.down_proj.bias, is_kept=True),
        )

    def _behind_norm(
        self, norm: Any, weights: list[Tensor], biases: list[Tensor | None]
    ) -> PackedLinear | Int8Linear:
        """Returns products of one input, with what `_normed` leaves of its norm multiplied in.

        Args:
            norm: of the input.
            weights: [..., inputs]; the dimensions before the last are those of outputs.
            biases: [outputs], or None for every weight.
        """
        width = weights[0].shape[-1]
        counts = [weight.numel() // width for weight in weights]
        shape = (sum(counts), width)
        bench = self._workbench
        whole = torch.empty(shape) if bench is None else bench[: sum(counts) * width].view(shape)
        scale_D = _norm_scale(norm)
        for weight, part in zip(weights, whole.split(counts), strict=True):
            place = part.view(weight.shape)
            if self._rounds:
                place.copy_(weight)
            else:
                torch.mul(weight, scale_D, out=place)
        given = [bias for bias in biases if bias is not None]
        assert len(given) in (0, len(biases)), "projections of one input have all biases, or none"
        bias = torch.cat(given) if given else None
        if self._rounds:
            return Int8Linear(whole, bias, factor=scale_D)
        return self._linear(whole, bias, is_kept=bench is None)

    def _head_norm(self, attention: Any) -> Tensor | None:
        if not hasattr(attention, "q_norm"):
            return None
        counts = (self._num_heads, self._num_turned - self._num_heads)
        weights = [
            _side_by_side(norm.weight, self._head_width).expand(count, -1)
            for norm, count in zip((attention.q_norm, attention.k_norm), counts, strict=True)
        ]
        return torch.cat(weights) * self._head_width**0.5


def unpackable_reason(model: nn.Module) -> str | None:
    """Returns why `PackedRotaryFamily` cannot run a model that `RotaryFamily` runs, or None."""
    causal_lm: Any = model
    weight = causal_lm.get_input_embeddings().weight
    if weight.device.type != "cpu" or any(
        parameter.dtype != torch.float32 for parameter in model.parameters()
    ):
        return "only float32 on the CPU is packed"
    if torch.is_autocast_enabled("cpu"):
        return "autocast chooses the type of each product"
    if causal_lm.config.hidden_act != "silu":
        return f"its activation is {causal_lm.config.hidden_act}"
    for layer in causal_lm.model.layers:
        for block, names in _PROJECTIONS.items():
            # Those of tensor parallelism, for one, do more than multiply.
            if any(type(getattr(getattr(layer, block), name)) is not nn.Linear for name in names):
                return "a projection is no plain linear layer"
    return None if can_pack() else "this build of PyTorch lacks oneDNN's packed products"


def _normed(values: Tensor, floor: Tensor) -> Tensor:
    """Returns values / sqrt(sum of squares + floor^2): RMS norm short of the root of the width."""
    # Two operations; with a mean of squares they are four, one of which is slow.
    return values / torch.linalg.vector_norm(values, dim=-1, keepdim=True).hypot(floor)


def _norm_scale(norm: Any) -> Tensor:
    """Returns what `_normed` leaves of an RMS norm to be multiplied by, [D]."""
    return norm.weight * norm.weight.shape[0] ** 0.5


def _largest_product(layer: Any) -> int:
    """Returns the elements of the largest weight that is put together of several."""
    attention, mlp = layer.self_attn, layer.mlp
    return max(
        sum(part.weight.numel() for part in parts)
        for parts in (
            (attention.q_proj, attention.k_proj, attention.v_proj),
            (mlp.gate_proj, mlp.up_proj),
        )
    )


def _side_by_side(rows: Tensor, head_width: int) -> Tensor:
    """Moves row i + K/2 of each head behind row i. Scores do not depend on the order in a head."""
    return _pairs_beside(rows, head_width).flatten(0, 2)


def _pairs_beside(rows: Tensor, head_width: int) -> Tensor:
    """Views rows, [heads * K, ...], as [heads, K/2, 2, ...]: row i + K/2 of a head beside row i."""
    return rows.unflatten(0, (-1, 2, head_width // 2)).transpose(1, 2)
