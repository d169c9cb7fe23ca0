"""The one table of what the paper does not state and what is assumed in its place."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from markdown_text import table
from published import cells, row_named

_VALUE: Final = re.compile(r"(?P<name>[^=]+)=(?P<value>.+?) \((?P<why>.+)\)")
_TABLE_1: Final = "flex-t1-001"
_UNLIKE: Final = "flex-het-002"
_SAID: Final = {
    "network": "InfiniBand, or Ethernet between unlike devices, no rate",
    "prompt tokens": "the total of 256 alone",
    "zero_stage": "ZeRO-2 at 7B and 13B, ZeRO-3 beyond",
    "n_gpus_generate": "30 to 50 % for the shadow actor as a guideline",
}
"""What the digest has on something that a rule of ours had to fill in."""
_SENTENCES: Final = {
    "samples: the largest batch that fits": (
        "batch",
        "the largest that fits, no number but 24, 36, 2 and 50",
        "the largest that fits by our memory account",
        "",
    ),
    "system: as a system of 2023": ("system of Figure 1", "not stated", "one of 2023", "usual"),
}
"""Notes that are no `name=value`."""
_TOLD: Final = "samples/s over generation and training alone, as the authors' code counts"
"""A note that the facts hold already."""


def assumptions() -> list[str]:
    """Returns the table: facts of the case file first, then every rule that a row needed."""
    header = ("what", "in the paper, by its digest", "assumed here", "why", "rows")
    return table(header, [*_facts(), *_figures(), *_rules()])


def _facts() -> list[list[str]]:
    row, unlike = row_named(_TABLE_1), row_named(_UNLIKE)
    lengths = row["sequence_tokens_total"]
    return [
        [
            "memory of an A100",
            "not stated",
            row["gpu"],
            "four whole 7B models (54 GB) beside 24 samples fit no smaller one",
            _count("gpu"),
        ],
        [
            "adapters",
            "not stated",
            f"LoRA of rank {row['lora_rank']} on actor and critic; not for trlX",
            "the authors' released code; without them 33B on 8 devices could not run",
            _count("lora_rank"),
        ],
        [
            "number format",
            "not stated",
            row["dtype"],
            "the authors' released code",
            _count("dtype"),
        ],
        [
            "tokens of a sequence",
            f"{lengths}, prompt and answer together",
            f"{lengths}; the released code has up to 256 + 256",
            "the paper goes before the code",
            _count("sequence_tokens_total"),
        ],
        [
            "samples/s",
            "not said what counts",
            "samples / (generation + training), scoring left out",
            "the authors' released code",
            str(sum(_TOLD in cell.assumptions for cell in cells().values())),
        ],
        [
            "where Interleave_2 keeps the other roles",
            "not stated",
            "critic everywhere, reference and reward on halves; in what-remains.md on other nodes",
            "our reading",
            str(sum(cell.row["strategy"] == "interleaved_2" for cell in cells().values())),
        ],
        [
            "memory of a V100",
            "not stated",
            unlike["gpu"].rpartition("x")[2],
            "the larger of the two sizes sold",
            "1",
        ],
    ]


def _count(column: str) -> str:
    """Rows in which a column is filled."""
    return str(sum(bool(cell.row[column]) for cell in cells().values()))


def _figures() -> list[list[str]]:
    return [
        [
            "models, lengths and devices of Figures 3 and 4",
            "illustrations, with no number but the batches of 6 and 12",
            "LLaMA-7B on A100 and V100, as in examples/figure3a.yaml and the three beside it",
            "requests that can be planned",
            "-",
        ]
    ]


def _rules() -> list[list[str]]:
    """What `flexrlhf predict` notes, once for each value, with the number of rows."""
    counted = Counter(text for cell in cells().values() for text in cell.assumptions if text)
    return [[*_rule(text), str(count)] for text, count in sorted(counted.items()) if text != _TOLD]


def _rule(text: str) -> tuple[str, str, str, str]:
    """What, in the paper, assumed, why."""
    if text in _SENTENCES:
        return _SENTENCES[text]
    match = _VALUE.fullmatch(text)
    if match is None:
        return text, "not stated", "so", ""
    return match["name"], _SAID.get(match["name"], "not stated"), match["value"], match["why"]
