"""Prints by how many bytes the most memory of a process grows while it loads a model's folder.

Its arguments are a tiny model's folder, to warm up with, the model's, and the type of its weights.
Pages of mapped files count as any other: this is what the system and `make bench` see.
"""

from __future__ import annotations

import gc
import sys

import torch

from flexrlhf.learning.models.loading import load_policy
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.training.memory import held_bytes, peak_bytes


def main() -> None:
    """Loads the one, then the other."""
    torch.set_num_threads(1)
    warm, folder, dtype = sys.argv[1:]
    load_policy(ModelSource(path=warm, dtype=dtype))
    gc.collect()
    before = held_bytes(torch.device("cpu"))
    model = load_policy(ModelSource(path=folder, dtype=dtype))
    assert sum(weight.nbytes for weight in model.parameters()) > 0
    print(peak_bytes(torch.device("cpu")) - before)


if __name__ == "__main__":
    main()
