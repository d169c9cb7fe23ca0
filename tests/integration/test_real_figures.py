"""Figures 3 and 4 of the paper as runs of tiny processes, judged by the timelines they measure.

Up to seven processes may share two cores, so order and overlap are held, and no duration. What the
simulator foresees of the same figures is held in test_figures.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from flexrlhf import app
from flexrlhf.config.resolution import spec_of
from flexrlhf.core.timeline import Span, read_trace
from flexrlhf.learning.models.loading import load_tokenizer
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.stage_plans import stage_plans
from flexrlhf.runtime.datasets import load_data
from flexrlhf.runtime.loop import TrainingRun
from flexrlhf.runtime.ray_cluster.processes import RayProcesses
from flexrlhf.runtime.ray_cluster.ray_launch import launch_on_ray
from flexrlhf.runtime.reward_role import reward_functions
from flexrlhf.runtime.stages import SilentListener

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "examples" / "workers"
GENERATED = 12
"""Micro-batches of Figure 4."""
PLACED_WORKERS = 7
"""Of the largest figure; the others use some of its processes."""


@dataclass(frozen=True)
class Round:
    """One iteration as it was measured."""

    number: int
    spans: tuple[Span, ...]

    def on(self, worker: int) -> list[Span]:
        own = (span for span in self.spans if span.track == f"device {worker - 1}")
        return sorted(own, key=lambda span: (span.start_s, span.end_s))

    def tasks(self, stage: str, *, role: str | None = None, part: int | None = None) -> list[Span]:
        """What is done in a stage, hand-overs left out; parts count from 1."""
        return [
            span
            for span in self.spans
            if span.stage == stage
            and span.transfer is None
            and role in (None, span.role)
            and (part is None or span.name.endswith(f"/{part - 1}"))
        ]


@dataclass(frozen=True)
class Measured:
    """A run's plan and its rounds; the first also warms up."""

    plan: Plan
    rounds: tuple[Round, ...]


def measured(name: str, processes: RayProcesses, folder: Path) -> Measured:
    config = app.load(EXAMPLES / f"{name}.yaml")
    spec = spec_of(config)
    plan = stage_plans(config, advised=False)[0].ranked.best
    tokenizer = load_tokenizer(str(EXAMPLES / "tokenizer"))
    data = load_data(config.data, spec.data, tokenizer, reward_functions(config.reward))
    processes.start([len(plan.devices)])
    run = TrainingRun(name, folder, launch_on_ray(config, plan, data, processes), plan)
    try:
        run.train(SilentListener())
    finally:
        run.close()
    timeline = read_trace(folder / "timeline.json")["measured"]
    rounds = (
        Round(number, tuple(span for span in timeline.spans if span.iteration == number))
        for number in timeline.iterations
    )
    return Measured(plan, tuple(rounds))


@pytest.fixture(scope="module")
def figure(ray_processes: RayProcesses, tmp_path_factory) -> Callable[[str], Measured]:
    found: dict[str, Measured] = {}
    ray_processes.start([PLACED_WORKERS])

    def run_once(name: str) -> Measured:
        if name not in found:
            found[name] = measured(name, ray_processes, tmp_path_factory.mktemp(name))
        return found[name]

    return run_once


def start(spans: Iterable[Span]) -> float:
    return min(span.start_s for span in spans)


def end(spans: Iterable[Span]) -> float:
    return max(span.end_s for span in spans)


def overlap_s(first: list[Span], second: list[Span]) -> float:
    return min(end(first), end(second)) - max(start(first), start(second))


def workers(spans: Iterable[Span]) -> set[int]:
    return {int(span.track.removeprefix("device ")) + 1 for span in spans}


def test_figure_3a_scores_one_model_after_the_other_on_both_workers(figure):
    run = figure("figure3a")
    assert run.plan.strategy == "colocated"
    for each in run.rounds:
        reference, reward = (each.tasks("score", role=role) for role in ("reference", "reward"))
        assert workers(reference) == workers(reward) == {1, 2}
        assert overlap_s(reference, reward) <= 0


def test_figure_3b_scores_with_reference_and_reward_at_the_same_time(figure):
    run = figure("figure3b")
    assert run.plan.strategy == "interleaved_1"
    for each in run.rounds:
        reference, reward = (each.tasks("score", role=role) for role in ("reference", "reward"))
        assert workers(reference) == {1}
        assert workers(reward) == {2}
        assert overlap_s(reference, reward) > 0
        assert workers(each.tasks("train", role="actor")) == {1, 2}


@pytest.mark.parametrize("name", ["figure4a", "figure4b"])
def test_figure_4_generates_twelve_micro_batches_one_after_the_other(figure, name):
    for each in figure(name).rounds:
        assert len({span.name for span in each.tasks("generate")}) == GENERATED
        for part in range(1, GENERATED):
            earlier, later = (each.tasks("generate", part=p) for p in (part, part + 1))
            assert end(earlier) <= start(later)


@pytest.mark.parametrize("name", ["figure4a", "figure4b"])
def test_figure_4_scores_a_micro_batch_when_it_is_there_while_later_ones_are_not(figure, name):
    for each in figure(name).rounds:
        for part in range(1, GENERATED + 1):
            scored = each.tasks("score", part=part)
            assert start(scored) >= end(each.tasks("generate", part=part))
            for later in range(part + 2, GENERATED + 1):
                assert start(scored) < start(each.tasks("generate", part=later))
        for later in (3, 4):
            assert end(each.tasks("generate", part=later)) > end(each.tasks("score", part=1))


@pytest.mark.parametrize("name", ["figure4a", "figure4b"])
def test_figure_4_has_one_bar_of_weights_per_round_on_each_worker_that_infers(figure, name):
    for each in figure(name).rounds:
        trained = end(each.tasks("train"))
        inferring = workers(each.tasks("generate") + each.tasks("score"))
        assert inferring
        for worker in inferring:
            stages = [stage for stage, _ in groupby(each.on(worker), lambda span: span.stage)]
            assert stages.count("sync") == 1
            assert stages[-1] == "sync"
            bar = [span for span in each.on(worker) if span.stage == "sync"]
            assert [span.transfer for span in bar] == ["weights", None]
            assert start(bar) >= trained


def test_figure_4a_trains_on_two_workers_and_infers_on_two(figure):
    for each in figure("figure4a").rounds:
        assert workers(each.tasks("train")) == {1, 2}
        assert workers(each.tasks("generate")) == workers(each.tasks("score")) == {3, 4}
        roles = {span.role for span in each.tasks("score")}
        assert roles == {"shadow_actor", "shadow_critic", "reference", "reward"}


def test_figure_4b_scores_in_the_middle_while_the_shadow_actor_generates_alone(figure):
    for each in figure("figure4b").rounds:
        assert workers(each.tasks("train")) == {1, 2, 3}
        for worker in (6, 7):
            roles = {span.role for span in each.on(worker) if span.transfer is None} - {None}
            assert roles == {"shadow_actor"}
        for role in ("shadow_critic", "reference", "reward"):
            assert workers(each.tasks("score", role=role)) == {4, 5}
        for part in range(1, GENERATED):
            scored = [s for s in each.tasks("score", part=part) if workers([s]) <= {4, 5}]
            assert overlap_s(scored, each.tasks("generate", part=part + 1)) > 0
