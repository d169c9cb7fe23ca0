"""The accuracy page, for people and for machines."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fit import FITTED, MOST
from left_out import Judged, by_class
from misses import OWN_RUNS, missed
from own_runs_page import own_goals
from paper_tables import Compared, Ordering, orderings, quotients
from placements_page import placement_goals, placement_results, placement_section

from flexrlhf.planning.costs.classes import CLASSES

_MEMORY: Final = ("peak_memory", "max_batch_samples")
_SHARES: Final = (
    "generation_fraction",
    "score_fraction",
    "train_fraction",
)


@dataclass(frozen=True)
class Goal:
    """One line of the goals' table."""

    on: str
    goal: str
    reached: str
    is_met: bool


def goals(judged: Sequence[Judged]) -> list[Goal]:
    """Returns what was to be reached beside what is."""
    grid = [j for j in judged if j.row.source == "real-vws"]
    rest = [j for j in judged if j.row.source != "real-vws" and not j.row.is_ratio]
    return [
        _grid_goal(grid),
        _rest_goal(rest),
        *_table_goals(judged),
        _share_goal(judged),
        _memory_goal(judged),
        *_own_goals(),
        *_placement_goals(),
    ]


def markdown(judged: Sequence[Judged]) -> str:
    """Returns the page."""
    parts = [
        "# How right the planner is",
        "",
        "`make accuracy` writes this page. Every number called predicted is simulated: the task"
        " graph of the published configuration runs on a virtual clock with the shipped constants."
        " Errors are predicted / measured - 1. The rows are those of `benchmarks/published/`; what"
        " a row does not state is assumed by the rules that stand beside it.",
        "",
        "*Left out* is the same with all rows of that configuration, of whatever system, taken out"
        " of the fit; *source out* with all rows of its source. Such a fit is one robust"
        " Gauss-Newton solution from the shipped constants with the rows that remain; predictions"
        " with it are exact. Structure (how a system generates, what it shards, which rule fills"
        " an empty cell) was found on all rows, so only the constants are left out.",
        "",
        "Memory and step times of our own runs stand in [own-runs.md](results/own-runs.md), which"
        " `make own-runs` writes as medians of five rounds. Three single runs before, of which the"
        " first was of commit 0328ca8 and the last of 739eda8, within an hour and a half, had"
        " errors of an iteration of +17.6, +33.3 and +9.0 % for sft, +15.5, +34.3 and +4.1 % for"
        " rm, +1.8, +6.3 and -15.9 % for PPO, +12.6, -2.4 and +9.8 % for SmolLM2: a goal that one"
        " run met another missed, since the machine drifts.",
        "",
        "## Goals",
        "",
        "| on | goal | reached | met |",
        "|---|---|---|---|",
        *(
            f"| {g.on} | {g.goal} | {g.reached} | {'yes' if g.is_met else '**no**'} |"
            for g in goals(judged)
        ),
        "",
        *missed(judged),
        *_placements(),
        *_one_model(judged),
        *_classes(judged),
        *_tables(judged),
        *_worst(judged),
        *_rows(judged),
    ]
    return "\n".join(parts) + "\n"


def document(judged: Sequence[Judged], facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the page as JSON values."""
    return facts | {
        "goals": [
            {"on": g.on, "goal": g.goal, "reached": g.reached, "met": g.is_met}
            for g in goals(judged)
        ],
        "rows": [
            {
                "id": j.row.identity,
                "class": j.row.class_name,
                "metric": j.row.row["metric"],
                "unit": j.row.row["unit"],
                "measured": j.row.value,
                "predicted": j.predicted,
                "error": j.error,
                "left_out": j.left_out,
                "left_out_error": j.left_out_error,
                "source_left_out": j.source_left_out,
                "source_left_out_error": j.source_error,
                "compare": "ratio" if j.row.is_ratio else "value",
                "assumptions": j.assumptions,
            }
            for j in judged
        ],
    }


def _own_goals() -> list[Goal]:
    text = OWN_RUNS.with_suffix(".json").read_text(encoding="utf-8")
    return [Goal(*goal) for goal in own_goals(json.loads(text))]


def _placement_goals() -> list[Goal]:
    results = placement_results()
    return [] if results is None else [Goal(*goal) for goal in placement_goals(results)]


def _placements() -> list[str]:
    results = placement_results()
    return [] if results is None else placement_section(results)


def _grid_goal(grid: Sequence[Judged]) -> Goal:
    middle, most = _spread(grid, lambda j: j.left_out_error)
    return Goal(
        f"ReaL's grid, {len(grid)} rows, four systems",
        "left out: median 12 %, 90th percentile 30 %",
        f"left out: median {middle:.1%}, 90th percentile {most:.1%}",
        middle <= 0.12 and most <= 0.30,
    )


def _rest_goal(rest: Sequence[Judged]) -> Goal:
    middle, most = _spread(rest, lambda j: j.left_out_error)
    return Goal(
        f"all other measure rows without compare=ratio, {len(rest)} rows",
        "left out: median 15 %",
        f"left out: median {middle:.1%}, 90th percentile {most:.1%}",
        middle <= 0.15,
    )


def _table_goals(judged: Sequence[Judged]) -> list[Goal]:
    ordered = orderings(judged)
    wrong = sum(len(o.wrong) for o in ordered)
    total = wrong + sum(o.right for o in ordered)
    ratios = quotients(judged)
    outside = [r for r in ratios if abs(r.error) > 0.25]
    return [
        Goal(
            "orderings of Tables I, II, V",
            "every one right, differences under 3 % are ties",
            f"{total - wrong} of {total} right",
            not wrong,
        ),
        Goal(
            "speed-ups of Tables I, II, V and unlike devices",
            "within 25 %",
            f"{len(ratios) - len(outside)} of {len(ratios)} within 25 %",
            not outside,
        ),
    ]


def _share_goal(judged: Sequence[Judged]) -> Goal:
    rows = [j for j in judged if j.row.row["metric"] in _SHARES]
    largest = max(abs(j.predicted - j.row.value) for j in rows)
    return Goal(
        "shares of Figures 1 and 7",
        "within 5 points",
        f"largest difference {100 * largest:.1f} points",
        largest <= 0.05,
    )


def _memory_goal(judged: Sequence[Judged]) -> Goal:
    rows = [j for j in judged if j.row.row["metric"] in _MEMORY]
    good = [j for j in rows if abs(j.error) <= 0.10]
    return Goal(
        "published peaks and largest batches",
        "within 10 %, never optimistic by more than 5 %",
        f"{len(good)} of {len(rows)} within 10 %",
        len(good) == len(rows),
    )


def _one_model(judged: Sequence[Judged]) -> list[str]:
    """The four numbers by which published cost models describe themselves."""
    rows = [j for j in judged if not j.row.is_ratio and j.predicted > 0]
    errors = [abs(j.error) for j in rows]
    times = [j for j in rows if j.row.row["metric"] == "iteration_time"]
    measured = [math.log(j.row.value) for j in times]
    missed = [math.log(j.predicted / j.row.value) for j in times]
    middle = statistics.fmean(measured)
    explained = 1 - sum(m * m for m in missed) / sum((v - middle) ** 2 for v in measured)
    grid: dict[tuple[str, ...], list[Judged]] = {}
    for item in times:
        if item.row.source == "real-vws":
            grid.setdefault(item.row.configuration, []).append(item)
    right = sum(
        min(items, key=lambda j: j.row.value) is min(items, key=lambda j: j.predicted)
        for items in grid.values()
    )
    return [
        "## As one cost model",
        "",
        f"Mean absolute error {statistics.fmean(errors):.0%}, largest {max(errors):.0%},"
        f" R squared of the logarithms of iteration times {explained:.2f}; the fastest of ReaL's"
        f" four systems is found in {right} of {len(grid)} configurations.",
        "",
    ]


def _classes(judged: Sequence[Judged]) -> list[str]:
    lines = [
        "## Classes and their constants",
        "",
        "Constants are fitted per class with a robust loss on the logarithm of predicted over"
        " measured, never per row; all others keep the values whose sources stand in"
        " `planning/costs/calibration.py`. Rows of sources that are sound only as quotients count"
        " after their median error is taken off. Shares of peak are bounded"
        f" ({', '.join(f'{name} {value:g}' for name, value in MOST.items())}).",
        "",
        "| class | rows | fitted | median | 90th | left out | 90th | source out |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in by_class([j for j in judged if not j.row.is_ratio]).items():
        own, own_most = _spread(rows, lambda j: j.error)
        left, left_most = _spread(rows, lambda j: j.left_out_error)
        apart = [j for j in rows if j.source_error is not None]
        without = f"{_spread(apart, _source_error)[0]:.0%}" if apart else "one source"
        constants = ", ".join(
            f"{constant} {getattr(CLASSES[name], constant):.3g}"
            for constant in FITTED.get(name, ())
        )
        lines.append(
            f"| {name} | {len(rows)} | {constants} | {own:.0%} | {own_most:.0%} | {left:.0%} |"
            f" {left_most:.0%} | {without} |"
        )
    return [*lines, ""]


def _tables(judged: Sequence[Judged]) -> list[str]:
    lines = [
        "## FlexRLHF's tables",
        "",
        "| quotient | published | predicted | error |",
        "|---|---|---|---|",
    ]
    lines += [_quotient_line(ratio) for ratio in quotients(judged)]
    lines += ["", "| table | pairs right | ties | wrong |", "|---|---|---|---|"]
    lines += [_ordering_line(found) for found in orderings(judged)]
    return [*lines, ""]


def _quotient_line(ratio: Compared) -> str:
    return f"| {ratio.name} | {ratio.published:.2f} | {ratio.predicted:.2f} | {ratio.error:+.0%} |"


def _ordering_line(found: Ordering) -> str:
    return f"| {found.table} | {found.right} | {found.ties} | {'; '.join(found.wrong) or 'none'} |"


def _worst(judged: Sequence[Judged]) -> list[str]:
    lines = [
        "## Sources, and what misses",
        "",
        "| source | rows | left out: median | 90th | worst row |",
        "|---|---|---|---|---|",
    ]
    sources: dict[str, list[Judged]] = {}
    for item in judged:
        if not item.row.is_ratio:
            sources.setdefault(item.row.source, []).append(item)
    for source, rows in sources.items():
        middle, most = _spread(rows, lambda j: j.left_out_error)
        worst = max(rows, key=lambda j: abs(j.left_out_error))
        lines.append(
            f"| {source} | {len(rows)} | {middle:.0%} | {most:.0%} |"
            f" {worst.row.identity} ({worst.row.row['metric']}) {worst.left_out_error:+.0%} |"
        )
    tried = "Structure that was tried and not kept, each with what it did:"
    return [*lines, "", *WHY, "", tried, "", *TRIED, ""]


WHY: Final = (
    "- **real-vws, OpenRLHF**: its authors divided the devices by a rule of their own after model"
    " sizes (ReaL's issue 10, a version of February 2024) and do not print it. Times that grow with"
    " the length at equal tokens, and double where the critic is as large as the actor, are not"
    " explained by any split we tried.",
    "- **openrlhf-readme, DeepSpeed-Chat**: lengths, critic and batch are not stated, and the"
    " offloaded run is several times slower than its parts.",
    "- **flex-batch**: 24 and 36 samples leave at most 1.0 GB each. Autograd keeps 1.4 GB of 256"
    " tokens of a 7B LLaMA whose matrices all have adapters"
    " (`tests/unit/planning/costs/test_saved_activations.py`), 0.2 GB with recomputation. The"
    " released code has a batch of its own for training passes; what it was is not stated.",
    "- **trtllm**: Falcon-180B at 128 sequences is slower than weights, cache and products say.",
    "- **dschat-blog, 30B on 8 devices**: its largest batch is counted too small.",
    "- **verl-671b**: training comes out too fast (650 s of training and scoring measured, 50 s"
    " predicted). The device is not named and taken as an H100; its page asks for 96 H20 at least,"
    " whose products take 6.7 times as long. The exchange between experts would add 2 s (decision"
    " 0021).",
    "- **nemo-rl**: nine tenths of an iteration are generation, whose mean lengths are not stated,"
    " so rates of decoding hold the difference between assumed and real ones: on 64 and 128 GB200"
    " the same batch of qwen3-235b takes 286 and 345 s in print.",
    "- **nemo-rl, nemotron3-nano**: the printed total of tokens and the printed tokens/s differ by"
    " a factor of eight.",
    "- **verl-async**: mean lengths are not stated and drift during training; its authors' own two"
    " runs of one setting differ by 20 %.",
    "- **llamarl**: devices are not stated.",
    "- **FlexRLHF, Table V**: trlX's reward model takes 0.10 s a sample at 7B by the published"
    " rates (they fit 1 / (0.10 + 0.42 / devices) within 2 % with 7, 15 and 31 devices); 256 tokens"
    " on one A100 take 0.03 s. At 13B our trlX is slower than the published one where Interleaving"
    " is faster than the published one.",
    "- **FlexRLHF, Table II**: colocated generation at 33B and 65B comes out 1.5 times too fast"
    " beside the disaggregated one; 33B scales by 2.1 and 65B by 3.9 from 32 to 128 devices, where"
    " both are split alike here.",
)
TRIED: Final = (
    "- Exchange of tokens between divided experts, as Megatron's all-to-all sends them: 15.4 %"
    " instead of 15.3 % over all other rows, with Hopper's training at its bound (decision 0021).",
    "- InfiniBand whose rate is not stated as two adapters of 200 Gbit/s a node: the share of it"
    " that fits runs into its bound of 0.95, and 33B on 16 over 8 devices misses by 45 %. With the"
    " eight adapters of a DGX A100 it is 0.4.",
    "- Weights of 13B gathered for every token, as FlexRLHF's code does under ZeRO-3 without the"
    " hybrid engine: Interleaving then scales by 2.2 from 8 to 32 devices, published is 3.9. So"
    " whole copies are taken, since they fit.",
    "- Tensor parallelism in training, too, where FlexRLHF's generation is apart: the mixed pool"
    " gains 117 % (published 14 %), since one model's pass is then spread over a node.",
    "- Training passes of 2,048 and 8,192 tokens in OpenRLHF, as its benchmark page suggests: its"
    " rows of ReaL's grid come out 40 to 80 % too fast; those of its own benchmark hardly change.",
    "- Adapters on queries and values alone would keep 1.08 GB of a 7B sample, which is what"
    " flex-batch shows; the released code names `.layers.`, so every matrix.",
    "- The difference to the data's own answer as trlX's reward (two passes): in none of its code"
    " that we could read.",
)


def _rows(judged: Sequence[Judged]) -> list[str]:
    lines = [
        "## Every row",
        "",
        "| id | system | metric | measured | predicted | error | left out | source out | assumed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for j in judged:
        apart = "" if j.source_error is None else f"{j.source_error:+.0%}"
        lines.append(
            f"| {j.row.identity}{' (ratio)' if j.row.is_ratio else ''} | {j.row.row['system']} |"
            f" {j.row.row['metric']} | {j.row.value:.5g} | {j.predicted:.5g} | {j.error:+.0%} |"
            f" {j.left_out_error:+.0%} | {apart} | {j.assumptions} |"
        )
    return lines


def _source_error(item: Judged) -> float:
    assert item.source_error is not None
    return item.source_error


def _spread(rows: Sequence[Judged], error: Callable[[Judged], float]) -> tuple[float, float]:
    """The median and the 90th percentile of absolute errors."""
    sizes = sorted(abs(error(row)) for row in rows)
    place = min(len(sizes) - 1, round(0.9 * (len(sizes) - 1)))
    return statistics.median(sizes), sizes[place]
