"""What runs left behind: report, table, answers of a trained policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flexrlhf.app.machines import require_packages
from flexrlhf.core.errors import RunFailed

if TYPE_CHECKING:
    from flexrlhf.runtime.prompt_file import PromptContent


def report(run_dir: Path | str) -> Path:
    """Writes `report.html` of a run folder and returns its path.

    Raises:
        ConfigError: the folder holds no run.
        RunFailed: the page cannot be written.
    """
    from flexrlhf.report.page import write_report

    try:
        return write_report(Path(run_dir))
    except OSError as error:
        raise RunFailed(
            f"The report of {run_dir} cannot be written: {error.strerror or error}.",
            "The run itself is untouched.",
            f"Free some space or mend the permissions, then: flexrlhf report {run_dir}",
        ) from error


def summary(run_dir: Path | str) -> str:
    """Returns the short table of a run folder.

    Raises:
        ConfigError: the folder holds no run.
    """
    from flexrlhf.report.run_folder import read_run
    from flexrlhf.report.summary import summary_text

    return summary_text(read_run(run_dir))


def read_prompts(file: Path | str) -> list[PromptContent]:
    """Returns the prompts in a file: column `prompt` of each row of a .jsonl, else a line each.

    Raises:
        ConfigError: the file is missing, not readable as text, or without prompts.
    """
    require_packages("Generating")
    from flexrlhf.runtime import prompt_file

    return prompt_file.read_prompts(Path(file))


def generate(
    source: Path | str,
    *,
    prompts: Sequence[PromptContent],
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[tuple[str, str]]:
    """Returns each prompt with the answer of a run's or folder's policy.

    Raises:
        ConfigError: there is no such model, it cannot compute, a prompt is not one or is too long
            for it, or the temperature is out of range.
    """
    require_packages("Generating")
    from flexrlhf.runtime.answering import answers

    return answers(
        Path(source),
        prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
    )
