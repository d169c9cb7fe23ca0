"""The paper's figures as SVG, drawn from simulated runs of the shipped requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from baselines import GATHER_ONCE, PER_TOKEN, TENSOR_PARALLEL
from compared import Scene, outcome
from numbers_of_figures import figure_1, figure_7
from remains_tables import PICTURE
from work import LENGTHS

from flexrlhf import app
from flexrlhf.core.timeline import Span
from flexrlhf.planning.search.stage_plans import StagePlans, stage_plans
from flexrlhf.report.colours import ROLE_COLOURS, STAGE_COLOURS
from flexrlhf.report.layout_picture import layout_picture
from flexrlhf.report.markup import Html
from flexrlhf.report.share_picture import ShareRow, share_picture
from flexrlhf.report.timeline_picture import timeline_picture

_EXAMPLES: Final = Path(__file__).parents[2] / "examples"
_PART_COLOURS: Final = {
    "Generation": STAGE_COLOURS["generate"],
    "Forward, actor": ROLE_COLOURS["actor"],
    "Forward, critic": ROLE_COLOURS["critic"],
    "Forward, reference": ROLE_COLOURS["reference"],
    "Forward, reward": ROLE_COLOURS["reward"],
    "Training": STAGE_COLOURS["train"],
}
_STAGES: Final = {
    "generate": "generation",
    "score": "scoring",
    "train": "training",
}


@dataclass(frozen=True, slots=True)
class Example:
    """A shipped request and what its figures show."""

    name: str
    layout: str
    """Title of its part of Figure 2."""
    course: str
    """Title of its timeline."""
    label: Callable[[Span], str]


def _by_role(span: Span) -> str:
    """Generation, and the role at work otherwise, short enough for its box."""
    if span.stage == "generate":
        return "generate"
    return "ref." if span.role == "reference" else span.role or span.stage


def _by_part(span: Span) -> str:
    """G1 is generation, F1 scoring of the first micro-batch."""
    if span.stage not in ("generate", "score"):
        return span.role or span.stage
    if span.transfer not in (None, "collective"):
        return ""
    return f"{'G' if span.stage == 'generate' else 'F'}{int(span.name.rpartition('/')[2]) + 1}"


EXAMPLES: Final = {
    "figure3a": Example(
        "figure3a",
        "(a) Co-located",
        "Figure 3a, simulated: co-located, a batch of 6 on each worker",
        _by_role,
    ),
    "figure3b": Example(
        "figure3b",
        "(b) Interleaving",
        "Figure 3b, simulated: interleaving, a batch of 12 on each worker",
        _by_role,
    ),
    "figure4a": Example(
        "figure4a",
        "(c) Disaggregated",
        "Figure 4a, simulated: W1 and W2 train, W3 and W4 infer",
        _by_part,
    ),
    "figure4b": Example(
        "figure4b",
        "(d) Disaggregated, unlike devices",
        "Figure 4b, simulated: the shadow actor alone on W6 and W7",
        _by_part,
    ),
}


def pictures() -> Iterator[tuple[str, Html]]:
    """Yields every picture with the name of its file."""
    yield "figure1.svg", _figure_1()
    yield from layouts()
    for example in EXAMPLES.values():
        yield f"{example.name}.svg", _course(example)
    yield "figure7.svg", _figure_7()
    yield PICTURE, _lengths()


def layouts() -> Iterator[tuple[str, Html]]:
    """Yields the parts of Figure 2 with the names of their files."""
    for letter, example in zip("abcd", EXAMPLES.values(), strict=True):
        yield f"figure2{letter}.svg", _layout(example)


@cache
def _planned(name: str) -> StagePlans:
    (stage,) = stage_plans(app.load(_EXAMPLES / f"{name}.yaml"))
    return stage


def _workers(stage: StagePlans) -> Mapping[int, str]:
    return {device: f"W{device + 1}" for device in stage.request.cluster.devices}


def _layout(example: Example) -> Html:
    stage = _planned(example.name)
    return layout_picture(
        stage.ranked.best,
        stage.request.cluster,
        title=example.layout,
        names=_workers(stage),
    )


def _course(example: Example) -> Html:
    stage = _planned(example.name)
    simulation = stage.ranked.found[0].best.simulation
    assert simulation is not None, "what fits was simulated"
    number = simulation.window.last + 1
    spans = (s for s in simulation.device_timeline().spans if s.iteration == number)
    lanes = {f"device {device}": name for device, name in _workers(stage).items()}
    return timeline_picture(spans, lanes, title=example.course, label=example.label)


def _figure_1() -> Html:
    shares = figure_1()
    rows = [
        ShareRow(name, {part: shares[part][place] for part in _PART_COLOURS})
        for place, name in enumerate(("published", "simulated"))
    ]
    return share_picture(rows, _PART_COLOURS, title="Figure 1: where an iteration's time goes")


def _figure_7() -> Html:
    rows: list[ShareRow] = []
    for system, (published, simulated) in figure_7().items():
        for words, step in (("published, about", published), ("simulated,", simulated)):
            name = f"{system}, {words} {step.seconds:.0f} s"
            shares = {"generation": step.generation, "training": step.training}
            rows.append(ShareRow(name, shares))
    colours = {name: STAGE_COLOURS[stage] for stage, name in _STAGES.items()}
    return share_picture(rows, colours, title="Figure 7: 33B on 4x8 devices")


def _lengths() -> Html:
    rows: list[ShareRow] = []
    for way in (PER_TOKEN, GATHER_ONCE, TENSOR_PARALLEL):
        for tokens in LENGTHS:
            found = outcome(Scene("llama-33b", 128, tokens), way)
            if found.samples_per_s is not None:
                shares = {_STAGES[s]: v for s, v in found.shares.items() if s in _STAGES}
                rows.append(ShareRow(f"{way.name}, {tokens}", shares))
    colours = {name: STAGE_COLOURS[stage] for stage, name in _STAGES.items()}
    title = "33B on 128 devices, by tokens of a sequence, simulated"
    return share_picture(rows, colours, title=title)
