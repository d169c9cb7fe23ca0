"""How far hardware and software stay behind the data sheet: the only fitted numbers.

One set per declared class of hardware and software generation, never per row; `classes.py` holds
them and says what each was fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants of one class."""

    name: str
    train_efficiency: float = 0.45
    """Share of peak FLOP/s in training's products. Source: llm-analysis README: at most 0.5."""
    forward_efficiency: float = 0.55
    """The same in scoring and prefill. Source: llm-analysis README: at most 0.7."""
    decode_bandwidth: float = 0.7
    """Share of peak memory bandwidth in decoding. Source: llm-analysis README: at most 0.9."""
    link_efficiency: float = 0.8
    """Share of a link's bandwidth in large collectives inside a node. Source: nccl-tests, about
    240 of 300 GB/s on A100."""
    network_efficiency: float = 0.6
    """The same between nodes."""
    congestion: float = 0.2
    """By how much each doubling of the nodes slows a collective between them."""
    launch_s: float = 2.5e-5
    """Seconds in which the host launches one operation; devices wait where it takes longer than
    their work. Source: PyTorch eager, 5 to 30 microseconds with the Python of a model around it."""
    collective_s: float = 3.0e-5
    """Seconds that a collective takes beside its ring: launch, and members that come late."""
    fetch_s: float = 1.0e-4
    """Seconds of the host for each fetch of sharded weights: hooks around modules, coalescing,
    freeing. Source: PyTorch and DeepSpeed do it in Python, some ten calls of `launch_s` and less.
    """
    decode_layer_s: float = 1.5e-5
    """Seconds per layer of a decode step whose launches are captured, beside its traffic."""
    step_s: float = 2.0e-3
    """Seconds per decode step beside its layers: sampling, scheduling."""
    task_s: float = 0.02
    """Seconds at the start of every task: dispatch, data, synchronisation."""
    overlap: float = 0.5
    """Share of the smaller of compute and sharded-weight traffic that hides behind the other."""
    sync_efficiency: float = 0.33
    """Share of a link's bandwidth in weight transfers. Source: verl, 8.25 of 25 GB/s."""
    sync_s: float = 0.5
    """Seconds of a weight transfer beside its bytes: names, shapes, groups, caches dropped."""
    tensor_s: float = 8.0e-4
    """Seconds per tensor where weights are sent one by one. Source: verl's documentation: 30B and
    235B models, of 18,000 and 36,000 tensors, take 11 and 35 s longer than in buckets."""
    file_bandwidth: float = 1.55e9
    """Bytes/s at which whole weights in 16 bits go into a folder that engines read. Source:
    prime-rl's benchmark files (commit 559b447), Qwen3-0.6B on one H100: 2.755 s a step by its
    throughput, 1.992 s by its timer around the passes, 1.19 GB of weights."""
    held_bytes: int = 2_000_000_000
    """Bytes per device of driver context, communication buffers and workspace."""
    fragmentation: float = 0.04
    """Share of the allocated bytes that no allocation can use."""
    activation_overhead: float = 0.0
    """Share of the saved activations that the allocator takes besides. Where processes share a
    machine it is measured; on GPUs `fragmentation` has it."""
    logit_bytes: float = 10.0
    """Bytes per logit in training: bfloat16 logits, float32 copy, float32 gradient."""
    source: str = "defaults from the sources named at each constant"


DEFAULT = Calibration("default")
