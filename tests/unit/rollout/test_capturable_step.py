"""The step that is captured asks the device for nothing, and reads nothing that lies elsewhere.

Its tensors are fake ones of a GPU, so this needs none. Whatever would break a capture, or be frozen
into it, is refused: numbers taken from the device, copies between devices, tensors of the host,
shapes that depend on contents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flexrlhf.learning.models.families import FAMILIES
from flexrlhf.learning.rollout.fixed_step import fixed_step

WAITS = {
    "_local_scalar_dense",
    "item",
    "nonzero",
    "masked_select",
    "unique",
    "_unique2",
    "unique_consecutive",
    "equal",
    "is_nonzero",
    "repeat_interleave",
    "lift_fresh",
}
"""Operations that make the host wait for the device, or bring its numbers along."""


class OnDeviceOnly(TorchDispatchMode):
    """Refuses what cannot be captured, or would be captured as it is once."""

    def __init__(self) -> None:
        super().__init__()
        self.num_operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        assert name not in WAITS, f"{func} cannot be captured"
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, out)):
            if isinstance(tensor, Tensor):
                assert tensor.device.type == "cuda", f"{func} has a tensor on {tensor.device}"
        self.num_operations += 1
        return out


class PlainIndexing(TorchFunctionMode):
    """Indexes by the operations that indexing is made of.

    Square brackets want a driver to choose the device first, which a torch for CPUs lacks.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not Tensor.__getitem__:
            return func(*args, **(kwargs or {}))
        found, index = args
        parts = index if isinstance(index, tuple) else (index,)
        dim = 0
        for place, part in enumerate(parts):
            if part is ...:
                dim = found.dim() - sum(left is not None for left in parts[place + 1 :])
                continue
            if part is None:
                found = found.unsqueeze(dim)
            elif isinstance(part, Tensor):
                found = torch.ops.aten.index.Tensor(found, [None] * dim + [part])
            elif isinstance(part, slice):
                found = torch.ops.aten.slice.Tensor(found, dim, part.start, part.stop)
            else:
                found = found.select(dim, part)
                continue
            dim += 1
        return found


def on_fake_gpu(model: nn.Module) -> nn.Module:
    """Replaces every tensor of a model on the meta device by one of a GPU that is not there."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            made = torch.empty(weight.shape, dtype=weight.dtype, device="cuda")
            setattr(module, name, nn.Parameter(made, requires_grad=False))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device="cuda"))
    return model


def meta_model(family: str, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, int] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    if family == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    config = AutoConfig.for_model(family, **sizes, vocab_size=61)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_step_of_every_family_can_be_captured(family: str, dtype: torch.dtype) -> None:
    model = meta_model(family, dtype)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode(), PlainIndexing():
        runner = FAMILIES[type(model).__name__](on_fake_gpu(model))
        runner.prepare(24)
        heads, width = runner.shape.num_kv_heads, runner.shape.head_width
        layers = [
            (
                torch.empty(6, heads, 24, width, dtype=dtype, device="cuda"),
                torch.empty(6, heads, 24, width, dtype=dtype, device="cuda"),
            )
            for _ in range(runner.shape.num_layers)
        ]
        tokens, positions = (torch.empty(6, dtype=torch.int64, device="cuda") for _ in range(2))
        with OnDeviceOnly() as mode:
            logits = fixed_step(runner, layers, tokens, positions)
    assert (logits.shape, logits.dtype, logits.device.type) == ((6, 61), dtype, "cuda")
    assert mode.num_operations > 2 * 20


@pytest.mark.parametrize(
    "work",
    [
        lambda values: values.sum().item(),
        lambda values: float(values.amax()),
        lambda values: bool((values > 0).all()),
        lambda values: values.tolist(),
        lambda values: values.cpu(),
        lambda values: values.to("cpu", non_blocking=True),
        lambda values: values[values > 0],
        lambda values: values.nonzero(),
        lambda values: values.masked_select(values > 0),
        lambda values: values + torch.ones(4),
        lambda values: values * torch.tensor(2.0),
        lambda values: values[torch.tensor([0, 1])],
        lambda values: values.copy_(torch.zeros(4)),
        lambda values: torch.tensor([1.0], device="cuda") + values,
    ],
)
def test_whatever_waits_or_brings_numbers_of_the_host_is_refused(
    work: Callable[[Tensor], object],
) -> None:
    with FakeTensorMode(), torch.inference_mode(), PlainIndexing():
        values = torch.empty(4, device="cuda")
        with pytest.raises((AssertionError, RuntimeError)), OnDeviceOnly():
            work(values)
