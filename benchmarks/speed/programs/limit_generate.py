"""What generation could take at best on this machine, reckoned from what its parts take.

Reading the distinct prompts, and for each new token the best time found for every matrix product of
the model, weights packed or not, and reading the cache at the memory's speed. Nothing else counts:
no attention's arithmetic, no norms, no sampling. A prompt that answers share is cached once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from turns import Turns, assignment

_HEADS = ("attention", "key_value")
_ROUNDS = 3
_READ_FLOATS = 1 << 26


def main() -> None:
    """Reckons until no turn is asked for any more."""
    given = assignment()
    job = given["job"]
    torch.set_num_threads(given["settings"]["threads"])
    torch.set_grad_enabled(False)
    turns = Turns(job["turn"]["iterations"], ("torch",))
    model = json.loads((Path(given["model"]) / "config.json").read_text(encoding="utf-8"))
    dtype = getattr(torch, job["dtype"])
    answers = job["prompts"] * job["samples_per_prompt"]
    while True:
        prefill_s = _layers_s(model, job["prompts"] * job["prompt_tokens"], dtype)
        prefill_s += _head_s(model, job["prompts"], dtype)
        step_s = _layers_s(model, answers, dtype) + _head_s(model, answers, dtype)
        step_s += _cache_bytes(model, job, dtype) / _read_bytes_per_s()
        turns.end_iteration(
            answers * job["new_tokens"], reckoned_s=prefill_s + job["new_tokens"] * step_s
        )


def _layers_s(model: dict[str, Any], rows: int, dtype: torch.dtype) -> float:
    """Products of all layers, projections that read the same fused or not."""
    width, inner = model["hidden_size"], model["intermediate_size"]
    queries, keys = (model[f"num_{kind}_heads"] * _head_width(model) for kind in _HEADS)
    ways = (
        ([(width, queries + 2 * keys)], [(width, queries), (width, keys), (width, keys)]),
        ([(queries, width)],),
        ([(width, 2 * inner)], [(width, inner), (width, inner)]),
        ([(inner, width)],),
    )
    layers = model["num_hidden_layers"]
    return sum(
        min(sum(_products_s(rows, *shape, layers, dtype) for shape in shapes) for shapes in way)
        for way in ways
    )


def _head_width(model: dict[str, Any]) -> int:
    return model.get("head_dim") or model["hidden_size"] // model["num_attention_heads"]


def _head_s(model: dict[str, Any], rows: int, dtype: torch.dtype) -> float:
    return _products_s(rows, model["hidden_size"], model["vocab_size"], 1, dtype)


def _products_s(rows: int, inputs: int, outputs: int, count: int, dtype: torch.dtype) -> float:
    """Returns the least seconds found for products with so many matrices, one after the other."""
    x = torch.randn(rows, inputs, dtype=dtype)
    weights = [torch.randn(outputs, inputs, dtype=dtype) for _ in range(count)]
    return min(_least_s(way, count) for way in _ways(x, weights))


def _ways(x: Tensor, weights: list[Tensor]) -> Iterator[Callable[[int], Tensor]]:
    yield lambda i: linear(x, weights[i])
    if len(x) == 1:
        yield lambda i: torch.mv(weights[i], x[0])
    turned = [weight.t().contiguous() for weight in weights]
    yield lambda i: torch.mm(x, turned[i])
    if torch.backends.mkldnn.is_available():
        pack, product = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
        packed = [pack(weight, len(x)) for weight in weights]
        yield lambda i: product(x, packed[i], None, "none", [], "")


def _least_s(product: Callable[[int], Tensor], count: int) -> float:
    found: list[float] = []
    for _ in range(_ROUNDS):
        begun_s = time.perf_counter()
        for index in range(count):
            product(index)
        found.append(time.perf_counter() - begun_s)
    return min(found)


def _cache_bytes(model: dict[str, Any], job: dict[str, Any], dtype: torch.dtype) -> float:
    """Keys and values that a step reads, on average."""
    new = job["prompts"] * job["samples_per_prompt"] * (job["new_tokens"] + 1) / 2
    tokens = job["prompts"] * job["prompt_tokens"] + new
    width = 2 * model["num_hidden_layers"] * model["num_key_value_heads"] * _head_width(model)
    return tokens * width * dtype.itemsize


def _read_bytes_per_s() -> float:
    """Returns how fast a large tensor is read."""
    large = torch.ones(_READ_FLOATS)
    least_s = min(_least_s(lambda _: large.sum(), 1), _least_s(lambda _: large.amax(), 1))
    return large.nbytes / least_s


if __name__ == "__main__":
    main()
