"""The page of runs under every placement, for people and for machines.

It takes hours, so that a run of it may end anywhere: each outcome is written at once, and those of
earlier runs stay, each with its commit, until the same placement is run again.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from run_differences import Differences

from flexrlhf.planning.placement.plan import Plan, RolePlacement

LIMIT: Final = 1e-6
"""Of a float64 run's differences."""
_COMMAND = "make equivalence"

Key = tuple[str, str, int]
"""Algorithm, placement and workers."""
_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One run under one placement, beside the same run on one device."""

    variant: str
    name: str
    workers: int
    plan: Plan
    float64: Differences
    float32: Differences

    def to_json(self) -> dict[str, Any]:
        """Returns the row as JSON values."""
        return {
            "algorithm": self.variant,
            "placement": self.name,
            "workers": self.workers,
            "strategy": self.plan.strategy,
            "roles": {role: placement.to_json() for role, placement in self.plan.placement.items()},
            "float64": asdict(self.float64),
            "float32": asdict(self.float32),
        }


class EquivalencePage:
    """`equivalence.md` and `equivalence.json` in a folder.

    Args:
        folder: of the page.
        keys: of all placements that there are, in the order of the page; others are left out.
        iterations: of each run.
    """

    def __init__(self, folder: Path, keys: Sequence[Key], *, iterations: int) -> None:
        self._folder = folder
        self._keys = keys
        self._iterations = iterations

    @property
    def equal(self) -> set[Key]:
        """Placements whose run gave that of one device, when they last ran."""
        return {key for key, row in self._rows().items() if _is_equal(row)}

    def add(self, row: Row) -> None:
        """Writes an outcome in place of the same placement's earlier one."""
        document = row.to_json() | {"commit": _commit(self._folder)}
        found = self._rows() | {_key(document): document}
        rows = [found[key] for key in self._keys if key in found]
        facts = {
            "command": _COMMAND,
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "iterations": self._iterations,
            "cases": len(self._keys),
        }
        text = json.dumps({**facts, "rows": rows}, indent=1) + "\n"
        self._file.write_text(text, encoding="utf-8")
        self._file.with_suffix(".md").write_text(_markdown(rows, facts), encoding="utf-8")

    @property
    def _file(self) -> Path:
        return self._folder / "equivalence.json"

    def _rows(self) -> dict[Key, _Row]:
        if not self._file.exists():
            return {}
        document = json.loads(self._file.read_text(encoding="utf-8"))
        if document["iterations"] != self._iterations:
            return {}
        return {_key(row): row for row in document["rows"]}


def _key(row: _Row) -> Key:
    return row["algorithm"], row["placement"], row["workers"]


def _is_equal(row: _Row) -> bool:
    found = row["float64"]
    return found["same_tokens"] and max(found["metrics"], found["weights"]) < LIMIT


def _markdown(rows: Sequence[_Row], facts: Mapping[str, object]) -> str:
    largest = max(max(row["float64"]["metrics"], row["float64"]["weights"]) for row in rows)
    same = sum(row["float64"]["same_tokens"] for row in rows)
    commits = Counter(row["commit"] for row in rows)
    lines = [
        "# Every placement gives the run of one device",
        "",
        f"`{facts['command']}` on {facts['machine']}: {len(rows)} of {facts['cases']} runs,"
        f" {facts['iterations']} iterations each, of a tiny model on 1, 2 and 4 worker processes,"
        f" at commits {', '.join(f'{name} ({count})' for name, count in commits.items())}.",
        "",
        f"In float64 {same} of {len(rows)} runs have the same tokens in all samples; the largest "
        f"relative difference of any metric, reward or final weight is {largest:.1e} (limit 1e-6).",
        "",
        "Differences are relative to the value on one device: in float64 to at least 1e-6, in "
        "float32, where the drift is shown and not limited, to at least 1e-2. "
        "Degrees: devices, TP tensor parallel, PP stages, DP replicas, Z ZeRO stage, off: "
        "optimiser in host memory. Roles that are alike stand together.",
        "",
        "| algorithm | placement | workers | strategy | roles | metrics | weights | tokens "
        "| float32: metrics | weights | tokens | at |",
        "|---|---|---:|---|---|---:|---:|---|---:|---:|---|---|",
    ]
    for row in rows:
        cells = [row["algorithm"], row["placement"], str(row["workers"]), row["strategy"]]
        cells.append(_roles(row["roles"]))
        for found in (row["float64"], row["float32"]):
            tokens = "same" if found["same_tokens"] else "differ"
            cells += [f"{found['metrics']:.0e}", f"{found['weights']:.0e}", tokens]
        lines.append(f"| {' | '.join([*cells, row['commit']])} |")
    return "\n".join(lines) + "\n"


def _roles(roles: Mapping[str, Mapping[str, Any]]) -> str:
    alike: dict[str, list[str]] = {}
    for role, document in roles.items():
        alike.setdefault(_degrees(RolePlacement.from_json(document)), []).append(role)
    return "; ".join(f"{', '.join(names)}: {degrees}" for degrees, names in alike.items())


def _degrees(placement: RolePlacement) -> str:
    words = [
        ",".join(map(str, placement.devices)),
        f"TP{placement.tensor_parallel}" if placement.tensor_parallel > 1 else "",
        f"PP{placement.pipeline_parallel}" if placement.pipeline_parallel > 1 else "",
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
