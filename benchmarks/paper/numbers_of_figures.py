"""The numbers of the paper's figures, published beside simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markdown_text import percent, table
from published import cells, predicted

_PARTS: Final = {
    "Generation": "flex-fig1-001",
    "Forward, all four": "flex-fig1-002",
    "Forward, actor": "flex-fig1-003",
    "Forward, critic": "flex-fig1-004",
    "Forward, reference": "flex-fig1-005",
    "Forward, reward": "flex-fig1-006",
    "Training": "flex-fig1-007",
}
_FIGURE_2A: Final = {
    "Generation": 0.85,
    "Forward, actor": 0.02,
    "Forward, reference": 0.02,
    "Forward, reward": 0.01,
    "Forward, critic": 0.01,
    "Training, actor": 0.05,
    "Training, critic": 0.05,
}
"""Rounded, and not quite those of Figure 1. Source: the digest."""
_FIGURE_7: Final = {"DeepSpeed-Chat": (1, 2, 3), "Disaggregated": (4, 5, 6)}
"""Rows of step time, generation's share and training's."""


def figure_1() -> dict[str, tuple[float, float]]:
    """Returns the shares of Figure 1, published and simulated."""
    found = {part: cells()[name] for part, name in _PARTS.items()}
    return {part: (cell.published, cell.simulated) for part, cell in found.items()}


def figure_1_case() -> str:
    """Returns what is assumed for Figure 1, which names no configuration."""
    return "; ".join(cells()[_PARTS["Generation"]].assumptions)


def figure_1_table() -> list[str]:
    """Returns the shares of Figure 1 and those of the table behind Figure 2."""
    shares = dict(figure_1())
    row = cells()[_PARTS["Training"]].row
    iteration_s, actor_s = (predicted(row, m) for m in ("iteration_time", "actor_train_time"))
    train = shares["Training"][1]
    simulated = {part: own for part, (_, own) in shares.items()}
    simulated |= {
        "Training, actor": actor_s / iteration_s,
        "Training, critic": train - actor_s / iteration_s,
    }
    rows = (
        [
            part,
            percent(shares[part][0] if part in shares else None),
            f"{100 * _FIGURE_2A[part]:.0f} %" if part in _FIGURE_2A else "-",
            percent(own),
        ]
        for part, own in simulated.items()
    )
    return table(("part", "Figure 1, published", "Figure 2a, published", "simulated"), rows)


@dataclass(frozen=True, slots=True)
class Step:
    """One bar of Figure 7; shares are of generation and training alone."""

    seconds: float
    generation: float
    training: float


def figure_7() -> dict[str, tuple[Step, Step]]:
    """Returns both systems of Figure 7, published and simulated."""
    return {
        system: (
            _step([cells()[f"flex-fig7-00{row}"].published for row in rows]),
            _step([cells()[f"flex-fig7-00{row}"].simulated for row in rows]),
        )
        for system, rows in _FIGURE_7.items()
    }


def figure_7_table() -> list[str]:
    """Returns the numbers of Figure 7."""
    header = ("system", "step, s, published", "simulated", "generation, published", "simulated")
    rows = (
        [
            system,
            f"about {published.seconds:.0f}",
            f"{simulated.seconds:.0f}",
            percent(published.generation),
            percent(simulated.generation),
            percent(published.training),
            percent(simulated.training),
        ]
        for system, (published, simulated) in figure_7().items()
    )
    return table((*header, "training, published", "simulated"), rows)


def _step(numbers: Sequence[float]) -> Step:
    seconds, generation, training = numbers
    both = generation + training
    return Step(seconds, generation / both, training / both)
