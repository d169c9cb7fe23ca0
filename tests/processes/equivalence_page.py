"""The page of runs under every placement, for people and for machines."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from run_differences import Differences

from flexrlhf.planning.placement.plan import Plan, RolePlacement

_COMMAND = "make equivalence"


@dataclass(frozen=True, slots=True)
class Row:
    """One run under one placement, beside the same run on one device."""

    variant: str
    name: str
    workers: int
    plan: Plan
    float64: Differences
    float32: Differences

    def to_json(self) -> dict[str, object]:
        """Returns the row as JSON values."""
        return {
            "algorithm": self.variant,
            "placement": self.name,
            "workers": self.workers,
            "strategy": self.plan.strategy,
            "roles": {role: placement.to_json() for role, placement in self.plan.placement.items()},
            **{
                kind: {
                    "metrics": found.metrics,
                    "at": found.at,
                    "weights": found.weights,
                    "same_tokens": found.same_tokens,
                }
                for kind, found in (("float64", self.float64), ("float32", self.float32))
            },
        }


def write_page(folder: Path, rows: Sequence[Row], *, iterations: int, num_cases: int) -> None:
    """Writes `equivalence.md` and `equivalence.json` into a folder."""
    facts = {
        "command": _COMMAND,
        "commit": _commit(folder),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "iterations": iterations,
        "cases": num_cases,
    }
    document = {**facts, "rows": [row.to_json() for row in rows]}
    (folder / "equivalence.json").write_text(json.dumps(document, indent=1) + "\n")
    (folder / "equivalence.md").write_text(_markdown(rows, facts))


def _markdown(rows: Sequence[Row], facts: dict[str, object]) -> str:
    largest = max((max(row.float64.metrics, row.float64.weights) for row in rows), default=0.0)
    same = sum(row.float64.same_tokens for row in rows)
    lines = [
        "# Every placement gives the run of one device",
        "",
        f"`{facts['command']}` at commit {facts['commit']} on {facts['machine']}: "
        f"{len(rows)} of {facts['cases']} runs, {facts['iterations']} iterations each, of a tiny "
        "model on 1, 2 and 4 worker processes.",
        "",
        f"In float64 {same} of {len(rows)} runs have the same tokens in all samples; the largest "
        f"relative difference of any metric, reward or final weight is {largest:.1e} (limit 1e-6).",
        "",
        "Differences are relative to the value on one device: in float64 to at least 1e-6, in "
        "float32, where the drift is shown and not limited, to at least 1e-2. "
        "Degrees: devices, TP tensor parallel, DP replicas, Z ZeRO stage, off: optimiser in host "
        "memory. Roles that are alike stand together.",
        "",
        "| algorithm | placement | workers | strategy | roles | metrics | weights | tokens "
        "| float32: metrics | weights | tokens |",
        "|---|---|---:|---|---|---:|---:|---|---:|---:|---|",
    ]
    for row in rows:
        cells = [row.variant, row.name, str(row.workers), row.plan.strategy, _roles(row.plan)]
        for found in (row.float64, row.float32):
            tokens = "same" if found.same_tokens else "differ"
            cells += [f"{found.metrics:.0e}", f"{found.weights:.0e}", tokens]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _roles(plan: Plan) -> str:
    alike: dict[str, list[str]] = {}
    for role, placement in plan.placement.items():
        alike.setdefault(_degrees(placement), []).append(role)
    return "; ".join(f"{', '.join(roles)}: {degrees}" for degrees, roles in alike.items())


def _degrees(placement: RolePlacement) -> str:
    words = [
        ",".join(map(str, placement.devices)),
        f"TP{placement.tensor_parallel}" if placement.tensor_parallel > 1 else "",
        f"DP{placement.data_parallel}" if placement.data_parallel > 1 else "",
        f"Z{placement.zero_stage}" if placement.zero_stage else "",
        f"shards of {placement.shard_devices}" if placement.shard_devices else "",
        "off" if placement.offload else "",
        f"generates TP{placement.generation_tensor_parallel}"
        if (placement.generation_tensor_parallel or 1) > 1
        else "",
        "gathers per token" if placement.generation == "per_token" else "",
    ]
    return " ".join(word for word in words if word)


def _commit(folder: Path) -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    return found.stdout.strip() or "unknown"
