"""Plans as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from flexrlhf.core.digits import three_digits
from flexrlhf.report.formats import format_ranges

_GIB: Final = 2**30
_COLUMNS: Final = ("rank", "strategy", "s/iteration", "samples/s", "idle", "peak GiB", "USD/1k")
_DEGREES: Final = (
    ("tensor_parallel", "tp"),
    ("pipeline_parallel", "pp"),
    ("data_parallel", "dp"),
    ("zero_stage", "zero"),
    ("micro_batch_samples", "micro"),
    ("generation_tensor_parallel", "generation tp"),
    ("shard_devices", "shard"),
)


def plan_text(document: Mapping[str, Any]) -> str:
    """Returns the document of `plan --json` as a table, the best placement, and every reason."""
    stages: Mapping[str, Any] = document.get("stages") or {"": document}
    texts = ["\n".join(_stage_lines(name, held)) for name, held in stages.items()]
    outlooks: Mapping[str, Any] = document.get("speculation", {})
    texts += [_speculation(name if len(stages) > 1 else "", o) for name, o in outlooks.items()]
    return "\n\n".join(texts)


def _speculation(stage: str, outlook: Mapping[str, Any]) -> str:
    """What a stage's speculation is expected to do."""
    return (
        f"{f'{stage}: ' if stage else ''}rollout.speculation {outlook['by']} is expected to make "
        f"decode steps {outlook['speedup']:.2f} times as fast, with all answers running, if a "
        f"proposed token is right with a chance of {outlook['acceptance']:g} (simulated)"
        f"{'.' if outlook['is_taken'] else ': it is not taken.'}"
    )


def _stage_lines(name: str, document: Mapping[str, Any]) -> Iterator[str]:
    plans: Sequence[Mapping[str, Any]] = document["plans"]
    if name:
        yield f"# {name}"
    if any("predicted" in plan for plan in plans):
        yield from _table([_COLUMNS, *(_row(plan) for plan in plans if "predicted" in plan)])
        yield ""
    if plans and plans[0]["feasible"]:
        yield f"{plans[0]['strategy']} (simulated):" if "predicted" in plans[0] else "The plan:"
        for role, placement in plans[0].get("placement", {}).items():
            yield f"  {role:13} {_placement(placement)}"
        yield ""
    if "switch_s" in document:
        switch_s = three_digits(document["switch_s"])
        yield f"Going to it from the stage before takes {switch_s} s (simulated)."
        yield ""
    for plan in plans:
        yield f"{plan['rank'] or '-'}. {plan['strategy']}: {plan['why']}"
    if "search" in document:
        search = document["search"]
        yield ""
        yield (
            f"{search['candidates']:,} candidates, {search['simulated']:,} simulated, "
            f"{search['seconds']:.1f} s"
        )


def _row(plan: Mapping[str, Any]) -> tuple[str, ...]:
    predicted = plan["predicted"]
    peak = max(max(stages.values()) for stages in predicted["peak_bytes"].values())
    cost = predicted.get("cost_per_1k_samples")
    return (
        str(plan["rank"] or "-"),
        plan["strategy"],
        three_digits(predicted["iteration_s"]),
        three_digits(predicted["samples_per_s"]),
        f"{predicted['shares']['bubble']:.0%}",
        f"{peak / _GIB:.1f}",
        "-" if cost is None else three_digits(cost),
    )


def _placement(placement: Mapping[str, Any]) -> str:
    said = [f"{short} {placement[key]}" for key, short in _DEGREES if placement.get(key)]
    if placement.get("offload"):
        said.append("offload")
    return f"devices {format_ranges(placement['devices'])}: {', '.join(said)}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
