"""What a launched stage is expected to take: its rows are read, its first answer is not given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flexrlhf.config.resolution import batch_sizes, spec_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import ConfigError
from flexrlhf.core.timeline import Timeline
from flexrlhf.learning.data.collation import Item, item_tokens, num_trainable_tokens
from flexrlhf.learning.data.preferences import PreferencePair
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.profiled.batches import Row, SequenceLength, likely_sequences
from flexrlhf.planning.costs.profiled.profile import Profile
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.evaluation import evaluate
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.one_device import predict_one_device
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.worker_run import worker_run
from flexrlhf.planning.workflow.shape import IterationShape


@dataclass(frozen=True, slots=True)
class RunPrediction:
    """The plan with what it is expected to take, and the timeline of that."""

    plan: Plan
    timeline: Timeline


def prediction_of(
    config: RunConfig,
    plan: Plan,
    profile: Profile,
    rows: Sequence[Any],
    shape: IterationShape,
) -> RunPrediction | None:
    """Returns the simulated course of a stage; None where nothing is known of its models' kind.

    Args:
        config: of the launched stage, its models' folders found.
        plan: where its roles sit.
        profile: of this machine.
        rows: that it trains on.
        shape: of its iterations.
    """
    num_devices = len(plan.devices)
    try:
        cluster = profile.cluster if num_devices == 1 else profile.workers_cluster(num_devices, 1)
        request = request_from(config, cluster)
    except ConfigError:  # a model whose sizes the planner cannot read can be trained all the same
        return None
    sequences = _expected(config, request, rows)
    if num_devices > 1:
        return _of_workers(config, plan, profile, request, sequences)
    found = predict_one_device(
        config,
        plan,
        profile,
        request.models,
        sequences,
        shape=shape,
        speculation=request.engine.speculation,
    )
    return None if found is None else RunPrediction(found.plan, found.simulation.timeline)


def _of_workers(
    config: RunConfig,
    plan: Plan,
    profile: Profile,
    request: PlanRequest,
    sequences: Sequence[SequenceLength],
) -> RunPrediction | None:
    """The same of a plan for several processes, on the tracks of their devices."""
    assert profile.workers is not None, "its cluster was made from them"
    workers = worker_run(config, profile.workers, sequences, speculation=request.engine.speculation)
    if workers is None:
        return None
    found = evaluate(replace(request, workers=workers), plan, requires_fit=False)
    assert found.simulation is not None
    predicted = replace(plan, predicted=found.plan.predicted)
    return RunPrediction(predicted, found.simulation.device_timeline())


def _expected(
    config: RunConfig, request: PlanRequest, rows: Sequence[Any]
) -> Sequence[SequenceLength]:
    """Lengths of an iteration's sequences: those of its rows, and of answers as expected."""
    spec, count = spec_of(config), batch_sizes(config).samples_per_iteration
    if not spec.generates:
        return _given(rows, count, spec)
    prompts = Lengths(tuple(sorted(float(len(prompt.tokens)) for prompt in rows)))
    workload = request.workload
    return likely_sequences(count, prompts, workload.response, workload.samples_per_prompt)


def _given(rows: Sequence[Any], count: int, spec: AlgorithmSpec) -> list[SequenceLength]:
    """Returns `count` rows' lengths, evenly from the shortest to the longest."""
    counted = spec.data == "supervised"
    sequences = sorted(
        (_sequence(row, counts=counted) for row in rows), key=lambda s: (s.tokens, s.response)
    )
    return [sequences[int((number + 0.5) / count * len(rows))] for number in range(count)]


def _sequence(item: Item, *, counts: bool) -> SequenceLength:
    """Returns an item's lengths; `counts` says whether its loss leaves tokens out."""
    whole = item_tokens(item)
    loss = num_trainable_tokens(item) if counts else whole
    pair = None
    if isinstance(item, PreferencePair):
        prompt = max(1, item.num_prompt_tokens)
        chosen, rejected = (Row(tokens, prompt, item.index) for tokens in item.num_tokens)
        pair = (chosen, rejected)
    return SequenceLength(float(whole - loss), float(loss), pair=pair)
