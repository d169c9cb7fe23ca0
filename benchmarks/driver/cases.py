"""What is driven: shipped requests under a strategy, on workers of a kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from planned import Planned, planned

_33B: Final = tuple(f"model.{role}.shape=llama-33b" for role in ("actor", "critic", "reward"))
_65B: Final = tuple(f"model.{role}.shape=llama-65b" for role in ("actor", "critic", "reward"))


@dataclass(frozen=True, slots=True)
class Case:
    """One plan to be driven."""

    name: str
    workers: Literal["Ray", "threads"]
    request: str
    """Name of the file in examples/plans."""
    strategy: str
    overrides: Sequence[str] = ()

    def planned(self) -> Planned:
        """Returns the best plan of the strategy."""
        return planned(self.request, self.strategy, self.overrides)


_PARTS: Final = (*_33B, "rollout.micro_batches=12")

CASES: Final = (
    Case("7B, colocated", "Ray", "ppo-7b-one-node", "colocated"),
    Case("33B on 4 nodes", "Ray", "paper-4x8-a100", "disaggregated", _33B),
    Case("33B, disaggregated", "Ray", "paper-16x8-a100", "disaggregated", _33B),
    Case("65B, disaggregated", "Ray", "paper-16x8-a100", "disaggregated", _65B),
    Case("33B, 12 micro-batches", "Ray", "paper-16x8-a100", "disaggregated", _PARTS),
    Case("33B, disaggregated", "threads", "paper-16x8-a100", "disaggregated", _33B),
    Case("70B, colocated", "threads", "ppo-70b-1024-h100", "colocated"),
    Case("70B, interleaved", "threads", "ppo-70b-1024-h100", "interleaved_1"),
    Case("70B, disaggregated", "threads", "ppo-70b-1024-h100", "disaggregated"),
)
