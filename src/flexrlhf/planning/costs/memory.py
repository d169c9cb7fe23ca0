"""Bytes that one role needs on each of its devices, by what they are for.

Sources: ZeRO, arXiv 1910.02054 (weights, gradients, optimiser and how stages 1 to 3 share them);
Korthikanti et al., arXiv 2205.05198 (activations, recomputation, tensor parallelism). Activations
are what autograd saves of a layer of `transformers`, counted term by term from the shape;
tests/unit/planning/costs/test_saved_activations.py holds the count against torch's own hooks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flexrlhf.core.names import GenerationMode
from flexrlhf.planning.costs.calibration import DEFAULT, Calibration
from flexrlhf.planning.costs.held_model import DTYPE_BYTES, HeldModel
from flexrlhf.planning.costs.layout import GRADIENTS, OPTIMIZER, WEIGHTS, Layout
from flexrlhf.planning.costs.shape import ModelShape
from flexrlhf.planning.costs.speculation import Speculation, draft_bytes

Bytes = dict[str, float]
"""What the bytes are for, and how many."""

_GATHERED_LAYERS: Final = 2
"""Layers whose gathered weights are alive at once: the one at work and the one prefetched."""
_STATE_BYTES: Final = 4
"""Of a number in a recurrent state. Source: vLLM and `transformers` hold those of Mamba and of
gated delta-nets in float32."""
_NORMS: Final = 2
"""Of a layer, before attention and before the MLP."""
_NORM_BYTES: Final = 4
"""Of a number inside a norm: `transformers` casts its input to float32."""
_LIVE_GRADIENTS: Final = 0.5
"""Part of a layer's activations whose gradients are alive at once: backward frees as it goes."""
_GRADIENTS_SHARDED: Final = 2
"""The ZeRO stage that shards gradients, but whole weights compute."""
_BUCKET_PARAMS: Final = 5e8
"""Gradients that ZeRO-2 collects before it reduces them. Source: DeepSpeed, `reduce_bucket_size`;
EleutherAI's cookbook counts it likewise."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How a role generates."""

    mode: GenerationMode = "gathered"
    tensor: int = 1
    """Devices over which the generating copy is split."""
    continuous: bool = True
    """Sequences leave and enter; otherwise a batch lasts as long as its longest."""
    launches: int = 0
    """Operations per layer that the host launches one by one in a decode step; 0: captured."""
    copies_cache: bool = False
    """Every step writes the whole cache anew, as `transformers` does when it appends by `cat`."""
    cache_reads: int = 1
    """Times that attention reads a cache which several query heads share, at most: kernels that
    work head by head find only part of it still on the chip."""
    most_samples: int | None = None
    """Sequences that a replica decodes at once, at most; None: as many as memory holds."""
    shares_prompts: bool = True
    """A group's prompt is computed once."""
    has_own_copy: bool = False
    """The engine keeps weights beside the trainer's, although their layouts agree."""
    packs_weights: bool = False
    """While it generates it holds a copy of the weights in a layout that is read faster."""
    rounds_weights: bool = False
    """While it generates it holds a copy of the weights in int8, and multiplies by that; on one
    device alone."""
    takes_buckets: bool = True
    """New weights come many tensors at a time, not one by one."""
    speculation: Speculation | None = None
    """How several tokens come of a step; None: one does."""

    def pipeline_of(self, layout: Layout) -> int:
        """Returns the pipeline stages while generating: resharding folds them."""
        return 1 if self.mode == "tensor_parallel" else layout.pipeline


def resting_bytes(model: HeldModel, layout: Layout) -> Bytes:
    """Returns what lies on a device throughout the run.

    Weights, optimiser state if trained, and prefixes that an engine keeps.
    """
    routed = model.shape.routed_share
    found = {"weights": layout.held(model.weight_bytes, routed, least_stage=WEIGHTS)}
    if model.is_trained and not layout.offload:
        found["optimizer"] = layout.held(model.optimizer_bytes, routed, least_stage=OPTIMIZER)
    if model.kept_prefix_tokens:
        found["kept prefixes"] = model.kept_prefix_bytes
    return found


def generation_bytes(
    model: HeldModel, layout: Layout, engine: Engine, *, samples: float, tokens: float
) -> Bytes:
    """Returns what generation adds on a device of the engine.

    Args:
        model: the actor.
        layout: of the weights at rest.
        engine: how it generates.
        samples: sequences at the same time in one replica.
        tokens: longest sequence, prompt and response.
    """
    shape = model.shape
    split = min(engine.tensor, shape.cache_heads)
    pipeline = engine.pipeline_of(layout)
    found = {
        "cache": samples
        * tokens
        * shape.cache_values_per_token
        * DTYPE_BYTES[model.compute_dtype]
        / (split * pipeline),
        "logits": samples * shape.vocab * 4.0 / engine.tensor,
    }
    if shape.state_values:
        found["states"] = samples * shape.state_values * _STATE_BYTES / (engine.tensor * pipeline)
    whole = shape.num_params * DTYPE_BYTES[model.compute_dtype] / pipeline
    if engine.mode == "per_token":
        found["gathered layers"] = _GATHERED_LAYERS * whole / shape.layers
    elif (
        engine.has_own_copy
        or pipeline != layout.pipeline
        or engine.tensor * pipeline != layout.weight_parts
    ):
        found["engine weights"] = whole / engine.tensor
    if engine.packs_weights and engine.tensor == 1 and engine.mode != "per_token":
        found["packed weights"] = whole
    if engine.rounds_weights:
        found["int8 weights"] = float(multiplied_params(shape))
    if held := draft_bytes(engine.speculation):
        found["draft model"] = held
    return found


def multiplied_params(shape: ModelShape) -> int:
    """Those that a decode step reads: of embeddings without a tie it takes single rows."""
    return shape.num_params - (0 if shape.tied_embeddings else shape.embedding_params)


def score_bytes(model: HeldModel, layout: Layout, *, tokens: float, logit_tokens: float) -> Bytes:
    """Returns what a forward pass without gradient adds.

    Args:
        model: the role's model.
        layout: how it is split.
        tokens: of one micro-batch on one replica.
        logit_tokens: positions whose logits are alive at once.
    """
    width = DTYPE_BYTES[model.compute_dtype]
    found = {"activations": tokens * _layer_bytes(model, layout.tensor)}
    if model.has_vocabulary_head:
        alive = min(tokens, logit_tokens)
        found["logits"] = alive * model.shape.vocab * (width + 4) / layout.tensor
    return found | _gathered_layers(model, layout)


def train_bytes(
    model: HeldModel,
    layout: Layout,
    *,
    tokens: float,
    logit_tokens: float,
    calibration: Calibration = DEFAULT,
) -> Bytes:
    """Returns what a forward and backward pass adds, the gradients included.

    Args:
        model: the role's model.
        layout: how it is split; with `pipeline` stages as many micro-batches are in flight.
        tokens: of one micro-batch on one replica.
        logit_tokens: positions whose logits are alive at once.
        calibration: what each number and each logit takes besides.
    """
    shape, width = model.shape, DTYPE_BYTES[model.compute_dtype]
    layers = shape.layers / layout.pipeline
    whole_layer = tokens * _layer_bytes(model, layout.tensor)
    in_flight = layout.pipeline
    if model.recomputes:
        activations = in_flight * layers * tokens * shape.hidden * width + whole_layer
    else:
        activations = in_flight * layers * whole_layer
    found = {
        "gradients": layout.held(model.gradient_bytes, shape.routed_share, least_stage=GRADIENTS),
        "activations": activations * (1 + calibration.activation_overhead),
        "activation gradients": _LIVE_GRADIENTS * whole_layer,
    }
    if layout.zero_stage >= 2 and layout.shard > 1:
        found["whole gradients"] = _whole_gradients(model, layout)
    if model.has_vocabulary_head:
        alive = min(tokens, logit_tokens)
        found["logits"] = alive * shape.vocab * calibration.logit_bytes / layout.tensor
    return found | _gathered_layers(model, layout)


def _whole_gradients(model: HeldModel, layout: Layout) -> float:
    """Gradients on the way to their owners: a layer's, or under ZeRO-2 a bucket of them."""
    own = model.gradient_bytes / layout.tensor / layout.pipeline
    if layout.zero_stage == _GRADIENTS_SHARDED:
        return min(own, _BUCKET_PARAMS * DTYPE_BYTES[model.weight_dtype])
    return model.gradient_bytes / model.shape.layers / layout.tensor


def _gathered_layers(model: HeldModel, layout: Layout) -> Bytes:
    if layout.zero_stage < 3 or layout.shard == 1:
        return {}
    per_layer = model.gathered_bytes / model.shape.layers / layout.tensor
    return {"gathered layers": _GATHERED_LAYERS * per_layer}


def _layer_bytes(model: HeldModel, tensor: int) -> float:
    """Bytes per token that one layer keeps for its backward pass.

    Each norm keeps its input in float32 and what it gives to the matrices behind it, and if its own
    weight is trained also what comes before that weight; all this stays whole under tensor
    parallelism. Queries, keys, values, what attention gives, and the MLP's inside are split.
    Attention itself keeps nothing per pair of positions, as in FlashAttention. A frozen matrix
    needs no input of its own, but adapters beside it do.
    """
    shape, width = model.shape, DTYPE_BYTES[model.compute_dtype]
    outputs = 1 if model.lora_rank else 2
    norms = _NORMS * shape.hidden * (_NORM_BYTES + outputs * width)
    attention = 2 * shape.heads * shape.head_dim + 2 * shape.kv_heads * shape.head_dim
    return norms + width * (attention + _mlp_values(shape)) / tensor


def _mlp_values(shape: ModelShape) -> float:
    """Gate, up, the activation and the product for a gated MLP; the two in a plain one.

    Routed experts also keep the tokens in the order of the experts, and what each gave before it
    was weighed.
    """
    kept = 4 if shape.gated_mlp else 2
    if not shape.experts:
        return float(kept * shape.ffn)
    active = shape.experts_per_token + shape.shared_experts
    return float(kept * shape.expert_ffn * active + 2 * shape.experts_per_token * shape.hidden)
