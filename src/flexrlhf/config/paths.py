"""Relative paths of a config: seen from the file's folder, else from the current folder."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flexrlhf.core.sources import HUB, REASONING_GYM, STAGE


def resolve_paths(document: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Returns a copy of a config document in which every path that exists is absolute.

    Args:
        document: sections as the YAML file gives them; what is malformed is left as it is.
        folder: where the file lies. A path is looked for there, then in the current folder; one
            that is in neither stays as it is written.
    """
    resolved = copy.deepcopy(document)
    bases = [base for base in (folder, Path.cwd()) if base is not None]
    for section, key in _places(resolved):
        text = section[key]
        is_name = key == "shape" and not text.endswith(".json")
        if not is_name and not text.startswith((STAGE, HUB, REASONING_GYM)):
            section[key] = _found(text, bases)
    rollout = resolved.get("rollout")
    draft = rollout.get("draft_model") if isinstance(rollout, dict) else None
    if isinstance(draft, str) and draft != "reference" and not draft.startswith((STAGE, HUB)):
        resolved["rollout"]["draft_model"] = _found(draft, bases)
    cluster = resolved.get("cluster")
    if isinstance(cluster, str) and cluster != "auto":
        resolved["cluster"] = _found(cluster, bases)
    elif isinstance(cluster, dict) and isinstance(cluster.get("profile"), str):
        cluster["profile"] = _found(cluster["profile"], bases)
    for function in _reward_functions(resolved):
        file, colon, name = function["path"].rpartition(":")
        if colon:
            function["path"] = f"{_found(file, bases)}:{name}"
    return resolved


def _places(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for section_name, keys in (("model", ("path", "shape", "tokenizer")), ("data", ("path",))):
        section = document.get(section_name)
        for entry in section.values() if isinstance(section, dict) else ():
            for key in keys:
                if isinstance(entry, dict) and isinstance(entry.get(key), str):
                    yield entry, key


def _reward_functions(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    section = document.get("reward")
    functions = section.get("functions") if isinstance(section, dict) else None
    for function in functions if isinstance(functions, list) else ():
        if isinstance(function, dict) and isinstance(function.get("path"), str):
            yield function


def _found(text: str, bases: list[Path]) -> str:
    for base in bases:
        if text and not why_absent(text, base):
            return str((base / Path(text).expanduser()).resolve())
    return text


def why_absent(text: str, folder: Path = Path()) -> str:
    """Says why nothing is found at a path, seen from `folder`; nothing where something is."""
    try:
        (folder / Path(text).expanduser()).stat()
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be found: {error.strerror}"
    except (RuntimeError, ValueError) as error:  # `~` of no user, or a character that no name has
        return f"is no path: {str(error).rstrip('.')}"
    return ""
