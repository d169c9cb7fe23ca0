"""What an iteration of a config has to get through, sequence by sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flexrlhf.config.resolution import settled, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.planning.costs.profiled.batches import PassLimit, SequenceLength
from flexrlhf.planning.costs.profiled.work import RunWork
from flexrlhf.planning.costs.speculation import Speculation

CPU_TOKENS: Final = 2048
"""Tokens of a micro-batch that a trial step on a CPU does not exceed."""


def run_work(
    config: RunConfig,
    sequences: Sequence[SequenceLength],
    limit: PassLimit,
    speculation: Speculation | None = None,
) -> RunWork:
    """Returns what an iteration of a run has to get through.

    Args:
        config: the stage, resolved.
        sequences: of one iteration.
        limit: of a pass.
        speculation: of its engine.
    """
    generates = spec_of(config).generates
    return RunWork(
        sequences=tuple(sequences),
        limit=limit,
        samples_per_prompt=config.rollout.samples_per_prompt if generates else 1,
        rows_per_item=rows_per_item(config),
        max_sequences=settled(config.rollout.max_sequences) if generates else None,
        most_new_tokens=config.rollout.max_new_tokens if generates else 0,
        generated=spec_of(config).generated_groups,
        speculation=speculation,
    )


def rows_per_item(config: RunConfig) -> int:
    """Returns the sequences of an item: two where it is a pair."""
    return 2 if spec_of(config).data == "preferences" else 1
