"""What a role's model is, as far as its bytes and operations go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from flexrlhf.planning.costs.shape import ModelShape

Head = Literal["language_model", "value", "both"]

DTYPE_BYTES: Final = {
    "float64": 8,
    "float32": 4,
    "tensorfloat32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8": 1,
}
"""Bytes of one number."""

_MOMENT_BYTES: Final = 8
"""AdamW's two averages in float32. Source: ZeRO, arXiv 1910.02054, section 3.1."""
_MASTER_BYTES: Final = 4
"""A float32 copy beside weights of fewer bits. Source: the same."""


@dataclass(frozen=True)  # without slots, so that sums that a search asks for often stay
class HeldModel:
    """One role's model and how it is held."""

    shape: ModelShape
    head: Head = "language_model"
    weight_dtype: str = "bfloat16"
    compute_dtype: str = "bfloat16"
    is_trained: bool = False
    lora_rank: int | None = None
    """None trains all weights."""
    recomputes: bool = True
    """Activations are computed again in the backward pass."""
    kept_prefix_tokens: int = 0
    """Tokens whose keys and values an engine keeps from one generation to the next, at most."""

    @cached_property
    def num_params(self) -> float:
        """Parameters, the head that it has included and the one that it lacks left out."""
        shape = self.shape
        head = 0 if self.head == "language_model" else shape.hidden
        lacks = shape.head_params if self.head == "value" else 0
        return shape.num_params + head - lacks + self._adapter_params

    @cached_property
    def trainable_params(self) -> float:
        """Parameters that have a gradient; 0 for a frozen role."""
        if not self.is_trained:
            return 0.0
        return float(self._adapter_params) if self.lora_rank else self.num_params

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the weights."""
        return self.num_params * DTYPE_BYTES[self.weight_dtype]

    @cached_property
    def gathered_bytes(self) -> float:
        """Bytes of the weights as sharded ones travel: cast first to what computes, if narrower.

        Source: FSDP2's mixed precision, whose all-gathers carry its `param_dtype`.
        """
        return self.num_params * min(
            DTYPE_BYTES[self.weight_dtype], DTYPE_BYTES[self.compute_dtype]
        )

    @cached_property
    def gradient_bytes(self) -> float:
        """Bytes of the gradients, held like the weights."""
        return self.trainable_params * DTYPE_BYTES[self.weight_dtype]

    @cached_property
    def optimizer_bytes(self) -> float:
        """Bytes of AdamW's state."""
        master = _MASTER_BYTES if DTYPE_BYTES[self.weight_dtype] < _MASTER_BYTES else 0
        return self.trainable_params * (_MOMENT_BYTES + master)

    @cached_property
    def kept_prefix_bytes(self) -> float:
        """Bytes of what an engine keeps, which may lie there throughout an iteration."""
        kept = self.kept_prefix_tokens * self.shape.cache_values_per_token
        return float(kept * DTYPE_BYTES[self.compute_dtype])

    @cached_property
    def has_vocabulary_head(self) -> bool:
        """Whether a forward pass ends in logits over the vocabulary."""
        return self.head != "value"

    @cached_property
    def _adapter_params(self) -> int:
        is_adapted = self.is_trained and self.lora_rank
        return self.shape.lora_params(self.lora_rank) if is_adapted and self.lora_rank else 0
