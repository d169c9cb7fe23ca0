"""Figures 3 and 4 of the paper, planned from examples/ and judged by the timeline alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from flexrlhf import app
from flexrlhf.core.errors import PlanError
from flexrlhf.core.timeline import Span
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.stage_plans import stage_plans

EXAMPLES = Path(__file__).parents[2] / "examples"
GENERATED = 12
"""Micro-batches of Figure 4."""
INSTANT_S = 1e-3
"""What a hand-over of a few hundred thousand bytes may take."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Round:
    """One iteration as the planner foresees it; a track per worker."""

    plan: Plan
    spans: tuple[Span, ...]

    def on(self, worker: int) -> list[Span]:
        return [span for span in self.spans if span.track == f"device {worker - 1}"]

    def work(self, stage: str, *, role: str | None = None, part: int | None = None) -> list[Span]:
        """What is done in a stage, hand-overs left out; parts count from 1."""
        return [
            span
            for span in self.spans
            if span.stage == stage
            and span.transfer in (None, "collective")
            and role in (None, span.role)
            and (part is None or span.name.endswith(f"/{part - 1}"))
        ]


@cache
def figure(name: str, *overrides: str) -> Round:
    (stage,) = stage_plans(app.load(EXAMPLES / f"{name}.yaml", overrides))
    plan, simulation = stage.ranked.best, stage.ranked.found[0].best.simulation
    assert simulation is not None
    number = simulation.window.last + 1
    spans = simulation.device_timeline().spans
    return Round(plan, tuple(span for span in spans if span.iteration == number))


def start(spans: Iterable[Span]) -> float:
    return min(span.start_s for span in spans)


def end(spans: Iterable[Span]) -> float:
    return max(span.end_s for span in spans)


def overlap_s(first: list[Span], second: list[Span]) -> float:
    return min(end(first), end(second)) - max(start(first), start(second))


def workers(spans: Iterable[Span]) -> set[int]:
    return {int(span.track.removeprefix("device ")) + 1 for span in spans}


def bars(spans: Iterable[Span]) -> Iterator[Interval]:
    """Stretches without a pause."""
    open_bar: Interval | None = None
    for span in sorted(spans, key=lambda span: span.start_s):
        if open_bar is None or span.start_s > open_bar[1] + INSTANT_S:
            if open_bar is not None:
                yield open_bar
            open_bar = (span.start_s, span.end_s)
        open_bar = (open_bar[0], max(open_bar[1], span.end_s))
    if open_bar is not None:
        yield open_bar


def with_passes(samples: int) -> tuple[str, ...]:
    """Overrides that ask for so many samples in a pass of what is trained."""
    return tuple(
        f"placement.roles.{role}.micro_batch_samples={samples}" for role in ("actor", "critic")
    )


def test_figure_3a_scores_one_model_after_the_other_on_both_workers():
    colocated = figure("figure3a")
    assert colocated.plan.strategy == "colocated"
    reference = colocated.work("score", role="reference")
    reward = colocated.work("score", role="reward")
    assert workers(reference) == workers(reward) == {1, 2}
    assert overlap_s(reference, reward) <= 0


def test_figure_3b_scores_with_reference_and_reward_at_the_same_time():
    interleaved = figure("figure3b")
    assert interleaved.plan.strategy == "interleaved_1"
    reference = interleaved.work("score", role="reference")
    reward = interleaved.work("score", role="reward")
    assert workers(reference) == {1}
    assert workers(reward) == {2}
    shorter = min(end(work) - start(work) for work in (reference, reward))
    assert overlap_s(reference, reward) > 0.9 * shorter
    assert workers(interleaved.work("train", role="actor")) == {1, 2}


def test_figure_3_asks_for_the_same_but_for_placement_and_batch():
    paths = (EXAMPLES / f"figure3{letter}.yaml" for letter in "ab")
    documents = [yaml.safe_load(path.read_text()) for path in paths]
    ratios = [document["placement"].pop("ratio") for document in documents]
    batches = [document["training"].pop("prompts_per_iteration") for document in documents]
    assert ratios == [[1, 1, 1, 1], [1, 1, 0.5, 0.5]]
    assert batches == [2 * 6, 2 * 12]
    assert documents[0] == documents[1]


@pytest.mark.parametrize(("name", "batch"), [("figure3a", 6), ("figure3b", 12)])
def test_the_batch_of_six_becomes_twelve_in_the_same_memory(name: str, batch: int):
    planned = figure(name)
    assert planned.plan.predicted is not None
    assert planned.plan.predicted.max_batch == batch
    assert figure(name, *with_passes(batch)).plan.feasible
    with pytest.raises(PlanError, match=r"training on device 0 needs .* lacks"):
        figure(name, "training.prompts_per_iteration=48", *with_passes(batch + 1))


@pytest.mark.parametrize("name", ["figure4a", "figure4b"])
def test_figure_4_generates_twelve_micro_batches_one_after_the_other(name: str):
    generated = figure(name).work("generate")
    parts = {span.name for span in generated}
    assert len(parts) == GENERATED
    intervals = sorted({(span.start_s, span.end_s) for span in generated})
    assert len(intervals) == GENERATED
    assert all(a[1] <= b[0] for a, b in pairwise(intervals))


@pytest.mark.parametrize("name", ["figure4a", "figure4b"])
def test_figure_4_scores_a_micro_batch_when_it_is_there_while_later_ones_are_not(name: str):
    planned = figure(name)
    scored = planned.work("score", part=1)
    assert start(scored) == pytest.approx(end(planned.work("generate", part=1)), abs=INSTANT_S)
    for later in (3, 4):
        assert end(planned.work("generate", part=later)) > end(scored)


@pytest.mark.parametrize(("name", "worker"), [("figure4a", 3), ("figure4b", 6)])
def test_figure_4_never_lets_those_that_generate_wait(name: str, worker: int):
    planned = figure(name)
    (bar,) = bars(s for s in planned.on(worker) if s.stage in ("generate", "score"))
    assert bar[0] == start(planned.work("generate"))
    assert bar[1] > end(planned.work("generate"))


@pytest.mark.parametrize("name", ["figure4a", "figure4b"])
def test_figure_4_has_one_bar_of_weights_per_round_on_each_worker_that_infers(name: str):
    planned = figure(name)
    trained = end(planned.work("train"))
    for worker in workers(planned.work("generate") + planned.work("score")):
        sync = [span for span in planned.on(worker) if span.stage == "sync"]
        assert {span.transfer for span in sync} == {"weights", None}
        (bar,) = bars(sync)
        assert bar[0] >= trained
    moved = [span for span in planned.spans if span.transfer == "weights"]
    assert len({span.start_s for span in moved}) == 1


def test_figure_4a_trains_on_two_workers_and_infers_on_two():
    planned = figure("figure4a")
    assert workers(planned.work("train")) == {1, 2}
    assert workers(planned.work("generate")) == workers(planned.work("score")) == {3, 4}
    assert {span.role for span in planned.work("score")} == {
        "shadow_actor",
        "shadow_critic",
        "reference",
        "reward",
    }


def test_figure_4b_keeps_the_shadow_actor_alone_and_the_others_in_the_middle():
    planned = figure("figure4b")
    assert workers(planned.work("train")) == {1, 2, 3}
    for worker in (6, 7):
        roles = {span.role for span in planned.on(worker) if span.transfer is None} - {None}
        assert roles == {"shadow_actor"}
    for role in ("shadow_critic", "reference", "reward"):
        assert workers(planned.work("score", role=role)) == {4, 5}


def test_figure_4b_scores_in_the_middle_while_the_shadow_actor_generates():
    planned = figure("figure4b")
    for part in range(1, GENERATED):
        scored = [s for s in planned.work("score", part=part) if workers([s]) <= {4, 5}]
        assert overlap_s(scored, planned.work("generate", part=part + 1)) > 0
