"""Work on a GPU that is captured once and repeated, without launching its operations one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

_WARM_UPS: Final = 3
"""Runs before a capture, in which libraries take the memory that they keep. Source: the example in
`CUDA semantics`, PyTorch 2.11, section CUDA Graphs."""

Replay = Callable[[], None]
Capture = Callable[[Callable[[], None]], Replay]
"""Runs work at least once, and returns what does it again."""


class CudaCapture:
    """See `Capture`: graphs that share the memory of what they compute on the way.

    Args:
        device: of the work.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Replay:
        """Runs and captures work, which neither waits for the device nor takes memory of it."""
        with torch.cuda.device(self._device):
            here = torch.cuda.current_stream()
            self._stream.wait_stream(here)
            # A capture that fails leaves its own stream behind as the current one.
            with torch.cuda.stream(here):
                with torch.cuda.stream(self._stream):
                    for _ in range(_WARM_UPS):
                        work()
                here.wait_stream(self._stream)
                graph = torch.cuda.CUDAGraph()
                # Other threads may use the device meanwhile: they train, or take weights.
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    work()
        return graph.replay
