"""What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

_SHOWN = (
    ("reward/mean", "reward", "{:.3f}"),
    ("kl/mean", "KL", "{:.4f}"),
    ("loss/supervised", "loss", "{:.4f}"),
    ("loss/preference", "loss", "{:.4f}"),
    ("accuracy/preference", "accuracy", "{:.1%}"),
    ("time/generate_s", "generate", "{:.2f}s"),
    ("time/score_s", "score", "{:.2f}s"),
    ("time/train_s", "train", "{:.2f}s"),
)


def progress_line(metrics: Mapping[str, float]) -> str:
    """Returns reward, KL, loss and seconds per stage in a few words."""
    return "  ".join(
        f"{label} {form.format(metrics[key])}" for key, label, form in _SHOWN if key in metrics
    )


class RunProgress:
    """Shows a run's stages and iterations on standard error.

    Args:
        console: where to write; a bar is drawn only where it is a terminal.
        plain_every: iterations between two lines where it is none.
    """

    def __init__(self, console: Console, *, plain_every: int = 10) -> None:
        self._console = console
        self._plain_every = plain_every
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""
        self._iterations = 0

    def start_stage(self, name: str, iterations: int, finished: int) -> None:
        """A stage begins; `finished` of its iterations are done already."""
        self._stage, self._iterations = name, iterations
        if not self._console.is_terminal:
            self._console.print(f"{name}: {iterations} iterations, {finished} finished")
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[line]}"),
                console=self._console,
            )
            self._bar.start()
        self._task = self._bar.add_task(name, total=iterations, completed=finished, line="")

    def finish_iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Iteration `iteration`, counted from 1, is finished."""
        line = progress_line(metrics)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=iteration, line=line)
        elif iteration % self._plain_every == 0 or iteration in (1, self._iterations):
            self._console.print(f"{self._stage} {iteration}/{self._iterations}  {line}")

    def close(self) -> None:
        """Leaves the last state on the screen."""
        if self._bar is not None:
            self._bar.stop()
