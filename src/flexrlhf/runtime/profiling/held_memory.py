"""What a process holds that no count of tensors shows: what the allocator wastes, and logits."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from flexrlhf.learning.algorithms.token_logprobs import selected_logprobs
from flexrlhf.learning.data.collation import COLLATE
from flexrlhf.learning.training.memory import (
    give_back_freed,
    held_bytes,
    peak_bytes,
    reset_peak,
)
from flexrlhf.learning.training.step import RoleTrainer
from flexrlhf.runtime.profiling.subjects import counts, llama, samples, trainer

_WIDTH, _LAYERS = 256, 12
_SEQUENCES, _TOKENS = 32, 64
_HEAD_WIDTH, _HEAD_ROWS, _VOCABULARY = 32, 512, 32768
_FLOAT_BYTES: Final = 4


def allocator_overhead(device: torch.device) -> float:
    """Returns the share that a training pass takes beside the tensors that its forward pass saves.

    The first pass is not counted: an allocator that has seen large tensors come and go keeps them
    in a heap with holes, and so it is in a run.
    """
    role = trainer(llama(_WIDTH, _LAYERS, device))
    _accumulate(role)
    before = _settled_bytes(device)
    saved = _accumulate(role)
    return max(0.0, (peak_bytes(device) - before) / saved - 1.0)


def logit_copies(device: torch.device) -> float:
    """Returns how many tensors as large as the logits are alive at once while a loss is derived."""
    hidden_ND = torch.randn(_HEAD_ROWS, _HEAD_WIDTH, device=device)
    weight_VD = torch.randn(_VOCABULARY, _HEAD_WIDTH, device=device, requires_grad=True)
    targets_N = torch.arange(_HEAD_ROWS, device=device)
    before = _settled_bytes(device)
    logprobs_N, _ = selected_logprobs(hidden_ND, weight_VD, targets_N, with_entropy=True)
    logprobs_N.sum().backward()
    logit_bytes = _HEAD_ROWS * _VOCABULARY * _FLOAT_BYTES
    return max(1.0, (peak_bytes(device) - before) / logit_bytes)


def _settled_bytes(device: torch.device) -> int:
    """Gives back what is free and starts a new peak from what is held then."""
    give_back_freed(device)
    reset_peak(device)
    return held_bytes(device)


def _accumulate(role: RoleTrainer) -> float:
    """Trains on one batch and returns the bytes that the forward pass saves for the backward."""
    weights = list(role.backend.model.parameters())
    storages = {weight.untyped_storage().data_ptr(): 0 for weight in weights}

    def count(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        storages.setdefault(storage.data_ptr(), storage.nbytes())
        return saved

    batch = COLLATE["prompts"](samples(_SEQUENCES, _TOKENS), role.objective.fields)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda saved: saved):
        part = role.objective(role.backend.model, batch.to(role.backend.device), counts(_SEQUENCES))
    role.backend.backward(part.loss)
    role.backend.discard_gradient()
    return float(sum(storages.values()))
