"""Mistakes of a careless or hostile user: what is wrong, what is right, what to do; and no harm.

Exit status 2 before anything starts and nothing left behind, or 1 with what was finished saved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

Document = dict[str, Any]
MESSAGE = re.compile(
    r"^\w+(?:Error|Failed|Missing|Lost): \S.*(?:\n.*)*?\n  \S.*\n  \S", re.MULTILINE
)
"""Three parts, each in lines of its own."""


@pytest.fixture(scope="session")
def changed(document) -> Callable[..., Document]:
    """Returns the config of an algorithm with some dotted keys set."""

    def make(algorithm: str, assignments: Mapping[str, Any]) -> Document:
        content = document(algorithm)
        for key, value in assignments.items():
            holder = content
            *above, last = key.split(".")
            for part in above:
                holder = holder.setdefault(part, {})
            holder[last] = value
        return content

    return make


@pytest.fixture
def refused(command) -> Callable[..., str]:
    """Runs a command that must start nothing, and returns what it says on stderr."""
    return lambda *arguments: _complaint(command, arguments, 2)


@pytest.fixture
def failed(command) -> Callable[..., str]:
    """Runs a command that must begin and fail, and returns what it says on stderr."""
    return lambda *arguments: _complaint(command, arguments, 1)


def _complaint(command, arguments: tuple[object, ...], status: int) -> str:
    found, out, err = command(*arguments)
    assert (found, out) == (status, ""), err
    assert "Traceback" not in err
    assert MESSAGE.search(err), err
    return err


@pytest.fixture
def outcome(command, config_file, tmp_path) -> Callable[..., str]:
    """Trains a config, or the text of one, and returns what the command says on stderr."""

    def run(content: Document | str, status: int, *options: object) -> str:
        path = tmp_path / "run.yaml"
        if isinstance(content, str):
            path.write_text(content)
        else:
            config_file(content)
        arguments = ("train", path, "--run-dir", tmp_path / "run", *options)
        if status == 0:
            found, _, err = command(*arguments)
            assert found == 0, err
            return err
        err = _complaint(command, arguments, status)
        if status == 2:
            assert not (tmp_path / "run").exists()
        return err

    return run


@pytest.fixture(scope="module")
def policy_folder(document, world, tmp_path_factory) -> Path:
    """A model of the usual architecture with its tokenizer."""
    from flexrlhf.learning.models.loading import load_policy, load_tokenizer
    from flexrlhf.learning.models.saving import save_model
    from flexrlhf.learning.models.source import ModelSource

    folder = tmp_path_factory.mktemp("models") / "policy"
    architecture = document("sft")["model"]["actor"]["architecture"]
    model = load_policy(ModelSource(architecture=architecture))
    save_model(model, load_tokenizer(str(world / "tokenizer")), folder)
    return folder
