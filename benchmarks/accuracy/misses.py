"""The goals that are missed: which rows miss, and one plain sentence why."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from left_out import Judged
from paper_tables import orderings, quotients

OWN_RUNS: Final = Path(__file__).parents[2] / "docs" / "results" / "own-runs.md"
_GRID: Final = "real-vws"
_GRID_MOST: Final = 0.30
_REST_MOST: Final = 0.15
_QUOTIENT_MOST: Final = 0.25
_MEMORY_MOST: Final = 0.10
_MEMORY: Final = ("peak_memory", "max_batch_samples")
_UNEXPLAINED: Final = "no reason found."

_GRID_WHY: Final = {
    "OpenRLHF": "its split of devices over roles is not printed, and no split that we tried gives"
    " these times.",
}
_SOURCE_WHY: Final = {
    "flex-fig1": "the figure names no model, batch or system, so its small shares (0.7 to 1.7 % of"
    " an iteration each) are those of a guessed case.",
    "flex-batch": "see the memory goal below.",
    "real-issue10": "the split of OpenRLHF's devices is not printed here either.",
    "openrlhf-bench": "the benchmark prints no samples per pass; its generation times hold what its"
    " parts wait for each other.",
    "openrlhf-readme": "DeepSpeed-Chat's lengths, critic and batch are not stated, and its"
    " offloaded run is several times slower than its parts.",
    "nemo-rl": "nine tenths of an iteration are generation, and its mean lengths are not stated; in"
    " print 128 GB200 take longer than 64 for one batch (nemo-rl-019 and 017).",
    "verl-async": "mean lengths are not stated and drift during training; two runs of one setting"
    " differ by 20 %.",
    "verl-sync": "few transfers decide the two constants of a sync: leaving some out moves them.",
    "llamarl": "the number of devices behind these transfers is not stated.",
    "trtllm-latency": "a first token after 128 others is mostly launches and the start of a call,"
    " whose constants are the same for A100 and H100 here.",
}
_ORDER_WHY: Final = {
    "flex-t1-002 / flex-t1-006": "13B interleaved gains 4 % in the paper; four whole 13B models do"
    " not fit 80 GB, so reference and reward are sharded here and halving them frees nothing.",
    "flex-t1-020 / flex-t1-024": "65B on 16 interleaved devices beats 32 colocated ones in print;"
    " here gathers over four nodes are not slow enough for that.",
    "flex-t1-020 / flex-t1-028": "the same as against 32 devices that are colocated.",
}
_COLOCATED: Final = (
    "generation that gathers 33B and 65B for every token comes out about 1.5 times too fast beside"
    " the disaggregated one; batch, split and network rate are not printed."
)
_TRLX: Final = (
    "by its printed rates trlX's one reward device takes 0.10 s a sample at 7B and 0.16 s at 13B,"
    " three times what 256 tokens take on an A100; what else it does there is in no code that we"
    " could read."
)
_TRLX_13B: Final = (
    "the largest batches (published 2 and 50) decide both rates; with ours trlX is a little slower"
    " and interleaving faster, measured by the factor of the paper's other rows."
)
_QUOTIENT_WHY: Final = {
    "33B, 32 devices: disaggregated over colocated": _COLOCATED,
    "65B, 32 devices: disaggregated over colocated": _COLOCATED,
    "65B, 128 devices: disaggregated over colocated": _COLOCATED,
    "65B, 16 devices: interleaved 2 over colocated": _COLOCATED,
    "7B, 8 devices: interleaved over trlX": _TRLX,
    "7B, 32 devices: interleaved over trlX": _TRLX,
    "trlX 13B: 32 over 8 devices": _TRLX,
    "13B, 8 devices: interleaved over trlX": _TRLX_13B,
}
_LARGEST_7B: Final = (
    "beside the weights at most 1.0 GB a sample remains, while autograd keeps 1.4 GB of 256"
    " tokens where every matrix has adapters and nothing is recomputed: the paper's run must have"
    " kept less, and does not say how."
)
_MEMORY_WHY: Final = {
    "flex-batch-001": _LARGEST_7B,
    "flex-batch-002": _LARGEST_7B,
    "flex-batch-004": "50 samples leave 0.5 GB each, while 13B keeps 2.2 GB a sample without"
    " recomputation and 0.3 GB with it: the paper states neither, nor whether 50 is one device's.",
}
_OWN_WHY: Final[Mapping[str, str]] = {}
"""By run; at present none is missed."""
_OWN_LINE: Final = re.compile(
    r"- (?P<run>.+), iteration: (?P<error>\S+ %)( \(.*\))?, goal .*: missed\."
)


def missed(judged: Sequence[Judged]) -> list[str]:
    """Returns the section, a list per goal; a goal that is met has none."""
    parts = {
        "ReaL's grid": _grid(judged),
        "All other rows": _rest(judged),
        "Orderings": _orderings(judged),
        "Speed-ups": _speed_ups(judged),
        "Published memory": _memory(judged),
        "Step times of our own runs": _own_runs(),
    }
    lines = ["## Which rows miss, and why", ""]
    for goal, found in parts.items():
        if found:
            lines += [f"**{goal}**", "", *found, ""]
    return lines


def _grid(judged: Sequence[Judged]) -> list[str]:
    rows = [j for j in judged if j.row.source == _GRID]
    beyond = [j for j in rows if abs(j.left_out_error) > _GRID_MOST]
    counts = Counter(j.row.row["system"] for j in beyond)
    totals = Counter(j.row.row["system"] for j in rows)
    return [
        f"- {count} of {totals[system]} rows of {system} are beyond 30 % (of all"
        f" {len(beyond)} that are): {_GRID_WHY.get(system, _UNEXPLAINED)}"
        for system, count in counts.most_common()
    ]


def _rest(judged: Sequence[Judged]) -> list[str]:
    """Sources whose own median misses; the goal is one median over all of them."""
    sources: dict[str, list[float]] = {}
    for j in judged:
        if j.row.source != _GRID and not j.row.is_ratio:
            sources.setdefault(j.row.source, []).append(abs(j.left_out_error))
    if statistics.median(e for errors in sources.values() for e in errors) <= _REST_MOST:
        return []
    return [
        f"- {source}, {len(errors)} rows, median {statistics.median(errors):.1%}:"
        f" {_SOURCE_WHY.get(source, _UNEXPLAINED)}"
        for source, errors in sources.items()
        if statistics.median(errors) > _REST_MOST
    ]


def _orderings(judged: Sequence[Judged]) -> list[str]:
    wrong = (pair for found in orderings(judged) for pair in found.wrong)
    return [f"- {pair}: {_ORDER_WHY.get(pair, _UNEXPLAINED)}" for pair in wrong]


def _speed_ups(judged: Sequence[Judged]) -> list[str]:
    return [
        f"- {q.name}, {q.error:+.0%}: {_QUOTIENT_WHY.get(q.name, _UNEXPLAINED)}"
        for q in quotients(judged)
        if abs(q.error) > _QUOTIENT_MOST
    ]


def _memory(judged: Sequence[Judged]) -> list[str]:
    return [
        f"- {j.row.identity} ({j.row.value:g} measured, {j.predicted:.3g} predicted):"
        f" {_MEMORY_WHY.get(j.row.identity, _UNEXPLAINED)}"
        for j in judged
        if j.row.row["metric"] in _MEMORY and abs(j.error) > _MEMORY_MOST
    ]


def _own_runs() -> list[str]:
    found = own_misses(OWN_RUNS.read_text(encoding="utf-8").splitlines())
    return [f"- {run}, {error}: {_OWN_WHY.get(run, _UNEXPLAINED)}" for run, error in found.items()]


def own_misses(lines: Iterable[str]) -> Mapping[str, str]:
    """Returns the runs of `make own-runs` whose iteration is missed, with the error."""
    matches = (_OWN_LINE.fullmatch(line.strip()) for line in lines)
    return {m["run"]: m["error"] for m in matches if m}
