"""What a launched stage is expected to take: its rows are read, its first answer is not given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flexrlhf.config.resolution import batch_sizes, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.data.collation import item_tokens, num_trainable_tokens
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.profiled.batches import SequenceLength, likely_sequences
from flexrlhf.planning.costs.profiled.profile import Profile
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.one_device import OneDevicePrediction, predict_one_device
from flexrlhf.planning.workflow.shape import IterationShape


def prediction_of(
    config: RunConfig,
    plan: Plan,
    profile: Profile,
    rows: Sequence[Any],
    shape: IterationShape,
) -> OneDevicePrediction | None:
    """Returns the simulated course of a stage; None where nothing is known of its models' kind.

    Args:
        config: of the launched stage, its models' folders found.
        plan: where its roles sit.
        profile: of this machine.
        rows: that it trains on.
        shape: of its iterations.
    """
    try:
        request = request_from(config, profile.cluster)
    except ConfigError:  # a model whose sizes the planner cannot read can be trained all the same
        return None
    spec = spec_of(config)
    if spec.generates:
        prompts = Lengths(tuple(sorted(float(len(prompt.tokens)) for prompt in rows)))
        count = batch_sizes(config).samples_per_iteration
        sequences = likely_sequences(count, prompts, request.workload.response)
    else:
        sequences = _given(rows, batch_sizes(config).samples_per_iteration, spec)
    return predict_one_device(config, plan, profile, request.models, sequences, shape=shape)


def _given(rows: Sequence[Any], count: int, spec: AlgorithmSpec) -> list[SequenceLength]:
    """Returns `count` rows' lengths, evenly from the shortest to the longest."""
    counted = spec.data == "supervised"
    lengths = sorted(
        (item_tokens(row), num_trainable_tokens(row) if counted else item_tokens(row))
        for row in rows
    )
    chosen = [lengths[int((number + 0.5) / count * len(lengths))] for number in range(count)]
    return [SequenceLength(float(whole - loss), float(loss)) for whole, loss in chosen]
