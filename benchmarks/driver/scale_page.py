"""The page of what the driver adds to an iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_GOAL: Final = 0.05


@dataclass(frozen=True, slots=True)
class Row:
    """One iteration that was driven; simulated seconds are scaled by `factor`."""

    case: str
    workers: str
    devices: int
    tasks: int
    """And transfers."""
    reports: int
    """One for each worker of each task."""
    factor: float
    simulated_s: float
    measured_s: float
    driver_cpu_s: float
    """Of the executor's thread."""
    process_cpu_s: float
    """Of the driver's process with all its threads."""

    @property
    def excess(self) -> float:
        """Part by which the iteration took longer than simulated."""
        return self.measured_s / self.simulated_s - 1

    def line(self) -> str:
        """Returns it as a line of a table."""
        return (
            f"| {self.case} | {self.devices:,} {self.workers} | {self.tasks} | {self.reports:,} "
            f"| {self.factor:.2f} | {self.simulated_s:.1f} s | {self.measured_s:.1f} s "
            f"| {self.excess:+.1%} | {self.driver_cpu_s / self.tasks * 1e3:.0f} ms "
            f"| {self.driver_cpu_s / self.reports * 1e3:.2f} ms |"
        )


def page(document: Mapping[str, Any]) -> str:
    """Returns the whole page."""
    rows = [Row(**row) for row in document["rows"]]
    parts = [
        "# The driver at scale",
        "",
        f"Written by `{document['command']}` in {document['minutes']} minutes on {document['at']}:"
        f" {document['machine']}, commit {document['commit']}.",
        "",
        "The executor drives plans for many devices. Workers only **sleep** here: each task and"
        " transfer takes the seconds that the simulator foresees for it, times the factor, so that"
        " all that an iteration takes beyond the simulated time is the driver's and, since all"
        " processes share this one machine, theirs. *Ray* is a process for each device behind the"
        " workers that train real models; *threads* are two threads for each device in the"
        " driver's own process. A report is one worker's end of one task.",
        "",
        "| plan | workers | tasks | reports | factor | simulated | measured | excess "
        "| driver per task | per report |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(row.line() for row in rows),
        "",
        *_verdict(rows),
    ]
    return "\n".join(parts) + "\n"


def _verdict(rows: Sequence[Row]) -> Iterator[str]:
    late = [row for row in rows if row.excess > _GOAL]
    yield f"Goal, an iteration within {_GOAL:.0%} of the simulator: " + (
        "met by every row." if not late else f"missed by {len(late)} of {len(rows)}."
    )
    yield ""
    yield (
        "*Driver per task* and *per report* are processor time of the thread that decides and"
        " starts. A task on more workers has more reports, and what a report costs is the same"
        " from 8 to 128 processes if the driver's cost does not grow."
    )
