"""FlexRLHF's tables: orderings and quotients, predicted beside published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from left_out import Judged

_TIE: Final = 0.03


@dataclass(frozen=True)
class Compared:
    """One quotient of two rows."""

    name: str
    published: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.predicted / self.published - 1


_QUOTIENTS: Final = (
    ("33B, 32 devices: disaggregated over colocated", "flex-t2-003", "flex-t1-023"),
    ("65B, 32 devices: disaggregated over colocated", "flex-t2-004", "flex-t1-024"),
    ("33B, 128 devices: disaggregated over colocated", "flex-t2-007", "flex-t2-005"),
    ("65B, 128 devices: disaggregated over colocated", "flex-t2-008", "flex-t2-006"),
    ("trlX 7B: 32 over 8 devices", "flex-t5-005", "flex-t5-001"),
    ("trlX 13B: 32 over 8 devices", "flex-t5-009", "flex-t5-007"),
    ("interleaved shared 7B: 32 over 8 devices", "flex-t5-006", "flex-t5-002"),
    ("interleaved shared 13B: 32 over 8 devices", "flex-t5-010", "flex-t5-008"),
    ("7B, 8 devices: interleaved over trlX", "flex-t5-002", "flex-t5-001"),
    ("7B, 32 devices: interleaved over trlX", "flex-t5-006", "flex-t5-005"),
    ("13B, 8 devices: interleaved over trlX", "flex-t5-008", "flex-t5-007"),
    ("13B, 32 devices: interleaved over trlX", "flex-t5-010", "flex-t5-009"),
    ("7B, 8 devices: interleaved 1 over colocated", "flex-t1-005", "flex-t1-001"),
    ("7B, 32 devices: interleaved 1 over colocated", "flex-t1-025", "flex-t1-021"),
    ("33B, 16 devices: interleaved 2 over colocated", "flex-t1-019", "flex-t1-011"),
    ("65B, 16 devices: interleaved 2 over colocated", "flex-t1-020", "flex-t1-012"),
    ("33B colocated: 16 over 8 devices", "flex-t1-011", "flex-t1-003"),
    ("33B: 8 A100 + 8 V100 over 8 A100", "flex-het-002", "flex-het-001"),
)


def quotients(judged: Sequence[Judged]) -> list[Compared]:
    """Returns the speed-ups that the paper shows."""
    rows = {item.row.identity: item for item in judged}
    return [
        Compared(
            name,
            rows[own].row.value / rows[other].row.value,
            rows[own].predicted / rows[other].predicted,
        )
        for name, own, other in _QUOTIENTS
    ]


@dataclass(frozen=True)
class Ordering:
    """How pairs of one table stand to each other."""

    table: str
    right: int
    wrong: tuple[str, ...]
    ties: int


def orderings(judged: Sequence[Judged]) -> list[Ordering]:
    """Returns for each table how many pairs of the same model or size stand as published."""
    tables: Mapping[str, list[Judged]] = {
        name: [item for item in judged if item.row.source == source and _is_rate(item)]
        for name, source in (("I", "flex-t1"), ("II", "flex-t2"), ("V", "flex-t5"))
    }
    extra = [i for i in judged if i.row.identity in ("flex-t1-023", "flex-t1-024")]
    tables["II"].extend(extra)
    return [_ordering(name, rows) for name, rows in tables.items()]


def _is_rate(item: Judged) -> bool:
    return item.row.row["metric"] == "samples_per_s"


def _ordering(name: str, rows: Sequence[Judged]) -> Ordering:
    right, ties, wrong = 0, 0, list[str]()
    for first, second in combinations(rows, 2):
        one, two = first.row.row, second.row.row
        if one["actor_model"] != two["actor_model"]:
            continue
        published = first.row.value / second.row.value
        predicted = first.predicted / second.predicted
        if abs(published - 1) < _TIE:
            ties += 1
        elif (published > 1) == (predicted > 1) and abs(predicted - 1) > 1e-9:
            right += 1
        else:
            wrong.append(f"{first.row.identity} / {second.row.identity}")
    return Ordering(name, right, tuple(wrong), ties)
