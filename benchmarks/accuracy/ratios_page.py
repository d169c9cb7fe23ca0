"""The page of pairs of placements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def page(document: Mapping[str, Any]) -> str:
    """Returns the whole page."""
    rows: Sequence[Row] = document["rows"]
    parts = [
        "# Pairs of placements, as ratios",
        "",
        f"Written by `{document['command']}` in {document['minutes']} minutes on {document['at']}:"
        f" {document['machine']}, commit {document['commit']}; profile of"
        f" {document['profiled_at']}.",
        "",
        "The jobs are those of [placements.md](placements.md), on two processes with a thread each."
        " Both placements of a pair run in turns on the same processes; a ratio is the seconds of"
        " the first that is named by the seconds of the other, its median over the turns and the"
        " range. Above 1 the other is faster. *Predicted* is simulated before the first run with"
        " the constants of `flexrlhf profile`. *Others* is the most of the machine that other"
        " programs used in a turn.",
        "",
        "| job | ratio | of | measured | from, to | predicted | seconds, medians | others |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(row) for row in rows),
        "",
        *_verdict(rows),
    ]
    return "\n".join(parts) + "\n"


def _line(row: Row) -> str:
    return (
        f"| {row['job']} | {row['name']} | {row['what']} | {row['measured']:.2f} "
        f"| {row['lowest']:.2f} to {row['highest']:.2f} | {row['predicted']:.2f} "
        f"| {row['second_s']:.2f} s / {row['first_s']:.2f} s | {row['others_share']:.0%} |"
    )


def _verdict(rows: Sequence[Row]) -> Iterator[str]:
    same = [row for row in rows if (row["measured"] > 1) == (row["predicted"] > 1)]
    yield f"The simulator names the faster one in {len(same)} of {len(rows)} pairs."
    lost = [row for row in rows if row["is_against_the_paper"]]
    if lost:
        named = ", ".join(f"{row['job']} by {row['measured']:.2f}" for row in lost)
        yield ""
        yield (
            "The paper's placement loses where a pair says *disaggregated against colocated*: "
            f"{named}. The answers are short and the models small, so every micro-batch decodes"
            " fewer sequences at once for the same steps, and half of the workers waits for the"
            " other half."
        )
