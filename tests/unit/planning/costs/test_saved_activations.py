"""Bytes of a layer's activations against those that torch's autograd saves of a real one."""

from __future__ import annotations

import pytest

from flexrlhf.planning.costs.held_model import HeldModel
from flexrlhf.planning.costs.layout import Layout
from flexrlhf.planning.costs.memory import train_bytes
from flexrlhf.planning.costs.shape import ModelShape

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SEQUENCES, LENGTH, VOCAB = 2, 32, 128
SIZES = {"hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": VOCAB}
DENSE = ModelShape("tiny", layers=1, ffn=176, **SIZES)
EXPERTS = ModelShape(
    "tiny", layers=1, ffn=0, experts=8, experts_per_token=2, expert_ffn=48, **SIZES
)
RANK = 8


class _Adapted(torch.nn.Module):
    """A frozen matrix with two narrow ones beside it, as DeepSpeed-Chat writes them."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        dtype = base.weight.dtype
        self.right = torch.nn.Parameter(torch.ones(base.in_features, RANK, dtype=dtype))
        self.left = torch.nn.Parameter(torch.ones(RANK, base.out_features, dtype=dtype))

    def forward(self, x):
        return self.base(x) + x @ self.right @ self.left


def _llama(layers):
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB,
        attn_implementation="sdpa",
    )
    return transformers.LlamaForCausalLM(config).model


def _mixtral(layers):
    config = transformers.MixtralConfig(
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
        vocab_size=VOCAB,
        attn_implementation="sdpa",
        experts_implementation="grouped_mm",
    )
    return transformers.MixtralForCausalLM(config).model


def _adapt(module):
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad = False
    for name, child in list(module.named_children()):
        _adapt(child)
        if isinstance(child, torch.nn.Linear):
            setattr(module, name, _Adapted(child))


def _saved_bytes(make, layers, *, dtype, is_adapted):
    """Bytes of all storages that autograd keeps, weights left out."""
    model = make(layers).to(dtype)
    if is_adapted:
        _adapt(model)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    inputs = torch.zeros(SEQUENCES, LENGTH, 64, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(inputs_embeds=inputs + 1, use_cache=False)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize(
    ("make", "shape", "dtype", "rank", "tolerance"),
    [
        (_llama, DENSE, "bfloat16", None, 0.03),
        (_llama, DENSE, "float32", None, 0.03),
        # Adapters keep RANK numbers more per matrix, which a real model's widths drown.
        (_llama, DENSE, "bfloat16", RANK, 0.06),
        (_mixtral, EXPERTS, "bfloat16", None, 0.06),
    ],
)
def test_a_layer_keeps_what_autograd_saves_of_it(make, shape, dtype, rank, tolerance):
    def saved(layers):
        return _saved_bytes(make, layers, dtype=getattr(torch, dtype), is_adapted=rank is not None)

    # The difference of two depths is one layer, without the masks and angles that layers share.
    per_layer = saved(2) - saved(1)
    model = HeldModel(
        shape,
        head="value",
        weight_dtype=dtype,
        compute_dtype=dtype,
        is_trained=True,
        lora_rank=rank,
        recomputes=False,
    )
    counted = train_bytes(model, Layout(), tokens=SEQUENCES * LENGTH, logit_tokens=1)
    assert counted["activations"] == pytest.approx(per_layer, rel=tolerance)
