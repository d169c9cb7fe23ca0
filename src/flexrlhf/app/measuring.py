"""What is known of machines: predictions of published cases, a profile, a check."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from flexrlhf.app.machines import require_packages
from flexrlhf.config.yaml_text import write_yaml
from flexrlhf.core.atomic_files import write_atomically
from flexrlhf.core.errors import ConfigError


def predict(cases: Path | str, out: Path | str) -> str:
    """Answers the rows of a case file and returns one line about it.

    Raises:
        ConfigError: the case file is wrong, or the answers cannot be written.
    """
    from flexrlhf.planning.cases.prediction import predict_file

    answers = predict_file(Path(cases), Path(out))
    refused = sum(answer.value is None for answer in answers)
    answered = len(answers) - refused
    return f"{answered} {'row' if answered == 1 else 'rows'} answered, {refused} refused: {out}"


def profile(
    out: Path | str,
    say: Callable[[str], None] = lambda _: None,
    *,
    ray: str | None = None,
    with_workers: bool = True,
) -> str:
    """Measures this machine into a file that `cluster: {profile: FILE}` names.

    Args:
        out: the file; one that is there is replaced.
        say: hears what is measured next.
        ray: address of a Ray cluster whose machines are measured too.
        with_workers: several processes are measured too; runs in one need none of it.

    Returns:
        One line about it.

    Raises:
        ConfigError: the file cannot be written, or there is no such cluster.
        EngineMissing: a package that training needs is not installed.
        FlexError: a machine of the cluster failed.
    """
    require_packages("A profile")
    file = Path(out)
    if file.is_dir() or not file.parent.is_dir():
        raise ConfigError(
            f"--out {file}: "
            + ("this is a folder." if file.is_dir() else f"there is no folder {file.parent}."),
            "It names a file in a folder that exists.",
            "Choose another name, or make the folder first.",
        )
    from flexrlhf.runtime import environment

    threads = environment.set_threads("auto")
    from flexrlhf.runtime.profiling.measure import measure  # torch reads the threads only once

    facts = environment.describe_environment(shlex.join(sys.argv))
    measured = measure(facts, threads, say, ray=ray, with_workers=with_workers)
    try:
        write_atomically(file, write_yaml(measured.to_document()))
    except OSError as error:
        raise ConfigError(
            f"--out {file} cannot be written: {error.strerror or error}.",
            "It names a file in a folder that may be written to.",
            "Choose another name, or mend the permissions.",
        ) from error
    return f"{measured.device}, {threads} threads, measured in {measured.made['seconds']} s: {file}"


def doctor() -> tuple[str, bool]:
    """Returns what this machine can run and what is wrong with it, and whether nothing is."""
    from flexrlhf.runtime.health import check_machine

    findings = check_machine()
    lines = [
        f"{finding.status:8}{finding.name}: {finding.detail}"
        + (f"\n        {finding.advice}" if finding.advice else "")
        for finding in findings
    ]
    return "\n".join(lines), all(finding.status != "error" for finding in findings)
