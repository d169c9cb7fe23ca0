"""What one iteration of a case has to get through."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flexrlhf.planning.cases.assumptions import Assumptions
from flexrlhf.planning.cases.case import Case
from flexrlhf.planning.cases.lengths_of import CaseLengths, lengths_of
from flexrlhf.planning.cases.systems import System
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.workload import Workload

_USUAL_PROMPTS: Final = {2023: 512, 2024: 512, 2025: 64}
_USUAL_GROUP: Final = {"grpo": 8, "dapo": 16}
_USUAL_UPDATE: Final = 128
"""Samples of an update in the scripts of DeepSpeed-Chat and OpenRLHF."""
_MOST_UPDATES: Final = 64
"""Updates of an iteration that are simulated one by one."""
_ONE_UPDATE_SINCE: Final = 2025


def workload_of(
    case: Case, system: System, strategy: str, num_devices: int, taken: Assumptions
) -> tuple[Workload, bool]:
    """Returns the work of an iteration, and whether its batch is the largest that fits.

    In that case the number of samples is only a beginning: one on each device.
    """
    lengths = _padded(system, lengths_of(case, taken, usual_limit=system.usual_tokens))
    if strategy == "async_colocated" or case.variant.get("partial_rollout") == "yes":
        # What is not finished goes on in the next iteration, so the batch never runs empty.
        lengths = replace(lengths, response=Lengths.fixed(lengths.response.mean))
    group = _group(case, taken)
    samples, fills = _samples(case, system, group, taken, num_devices)
    mini_batches = _mini_batches(case, system, samples, taken, fills=fills)
    epochs = 1 if case.metric == "run_time" else case.count("epochs")
    if epochs * mini_batches > _MOST_UPDATES:
        epochs = min(epochs, _MOST_UPDATES)
        most = max(1, _MOST_UPDATES // epochs)
        mini_batches = taken.take("num_minibatches", most, f"stands for {mini_batches} updates")
    return (
        Workload(
            num_samples=samples,
            prompt=lengths.prompt,
            response=lengths.response,
            samples_per_prompt=group,
            mini_batches=mini_batches,
            epochs=epochs,
            logit_tokens=float("inf") if system.pads else 1024.0,
            sequence_split=_sequence_split(case, system, lengths, taken),
            speedup=0.5 if case.word("algorithm") == "remax" else 1.0,
        ),
        fills,
    )


def _sequence_split(case: Case, system: System, lengths: CaseLengths, taken: Assumptions) -> int:
    """Replicas that share a sequence: as stated, or as many as its tokens ask for."""
    if case.number("cp_train") is not None:
        return case.count("cp_train")
    longest = lengths.prompt.longest + lengths.response.longest
    split = 1
    while longest / split > system.micro_batch_tokens and not system.pads:
        split *= 2
    return split if split == 1 else taken.take("cp_train", split, "the longest sequence")


def _padded(system: System, lengths: CaseLengths) -> CaseLengths:
    prompt, response = lengths.prompt, lengths.response
    if system.pads_prompts:
        prompt = Lengths.fixed(prompt.longest)
    if system.pads:
        response = Lengths.fixed(response.longest)
    return CaseLengths(prompt, response)


def _group(case: Case, taken: Assumptions) -> int:
    if case.number("samples_per_prompt") is not None or case.number("prompts_per_iteration"):
        return case.count("samples_per_prompt")
    usual = _USUAL_GROUP.get(case.word("algorithm") or "", 1)
    return usual if usual == 1 else taken.take("samples_per_prompt", usual, "usual")


def _samples(
    case: Case, system: System, group: int, taken: Assumptions, num_devices: int
) -> tuple[int, bool]:
    prompts = case.number("prompts_per_iteration")
    if prompts is not None:
        return max(1, round(prompts)) * group, False
    if case.number("train_batch_samples") is not None:
        samples = case.count("train_batch_samples") * case.count("num_minibatches")
        return taken.take("samples", samples, "updates x their batch"), False
    if system.fills_memory:
        taken.note("samples: the largest batch that fits")
        return num_devices, True
    usual = _USUAL_PROMPTS[system.year]
    return taken.take("prompts_per_iteration", usual, "usual") * group, False


def _mini_batches(
    case: Case, system: System, samples: int, taken: Assumptions, *, fills: bool
) -> int:
    stated = case.number("num_minibatches")
    if stated is not None:
        return max(1, min(round(stated), samples))
    batch = case.number("train_batch_samples")
    if batch is not None:
        return max(1, round(samples / batch))
    if system.year < _ONE_UPDATE_SINCE and not fills:
        updates = max(1, round(samples / _USUAL_UPDATE))
        return taken.take("num_minibatches", updates, f"an update for {_USUAL_UPDATE} samples")
    return taken.take("num_minibatches", 1, "one update")
