"""The page of two placements on hosts behind slow links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from placement_rows import STAGES

Row = Mapping[str, Any]


def page(document: Mapping[str, Any]) -> str:
    """Returns the whole page."""
    ratio: Row = document["ratio"]
    links = ", ".join(f"{8e-6 * rate:.1f}" for rate in document["links"])
    speeds = ", ".join(f"{speed:.2f}" for speed in document["speeds"])
    parts = [
        "# Two hosts behind slow links",
        "",
        f"Written by `{document['command']}` in {document['minutes']} minutes on {document['at']}:"
        f" {document['machine']}, commit {document['commit']}; profile of"
        f" {document['profiled_at']}. When it began, {document['load']:.1f} tasks were running on"
        f" {document['cores']} cores, and other programs used up to {ratio['others_share']:.0%} of"
        " the machine while it ran.",
        "",
        f"This machine plays two hosts with a worker each, whose links let through"
        f" {document['mbit']:g} Mbit/s each way ([how](../guides/ray.md#try-it-on-one-machine))."
        f" `flexrlhf profile --ray auto` measured {links} Mbit/s between them, and workers with"
        f" {speeds} times the speed of one process alone. The job is `{ratio['job']}` of"
        " [placements.md](placements.md): most of a sample is generated. *Disaggregated*: one host"
        " trains, the other generates and scores, and takes the new weights once per iteration."
        " *ZeRO-3 generation*: both hold half of all weights, and gather every layer for every"
        " token; there `transformers` generates, since the engine `native` calls parts of layers,"
        " and the profile knows `native` only. Seconds are medians of the iterations of a run, but"
        " for the first; *predicted* was simulated before the first run.",
        "",
        "| placement | turn | iteration | predicted | error | "
        + " | ".join(STAGES)
        + " | others |",
        "|" + "---|" * (6 + len(STAGES)),
        *_lines(document["rows"]),
        "",
        "Stages: measured / predicted, in seconds.",
        "",
        f"Disaggregated is **{ratio['measured']:.2f} times as fast** ({ratio['lowest']:.2f} to"
        f" {ratio['highest']:.2f}); predicted were {ratio['predicted']:.2f}.",
    ]
    if "note" in document:
        parts += ["", document["note"]]
    return "\n".join(parts) + "\n"


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    for number, row in enumerate(rows):
        stages = " | ".join(f"{a:.2f} / {b:.2f}" for a, b in map(row["stages"].get, STAGES))
        yield (
            f"| {row['name']} | {number // 2 + 1} | {row['measured_s']:.2f} s"
            f" | {row['predicted_s']:.2f} s | {row['error']:+.0%} | {stages}"
            f" | {row['others_share']:.0%} |"
        )
