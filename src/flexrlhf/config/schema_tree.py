"""The JSON schema of a run's configuration, walked by dotted key and put into words.

Error messages, the reference page and editors all describe a field from this one schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from flexrlhf.config.schema import RunConfig

Node = dict[str, Any]

_A_KEY = "[key]"
"""Last part of pydantic's location where the key of a mapping is wrong, not its value."""
_KINDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "null": "null",
    "object": "a section",
    "array": "a list",
}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


@cache
def json_schema() -> Node:
    """Returns the JSON schema (draft 2020-12) of a run's file, for editors."""
    schema = RunConfig.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def branches(node: Node) -> Iterator[Node]:
    """Yields the alternatives that a node allows, references followed."""
    if "$ref" in node:
        yield from branches(json_schema()["$defs"][node["$ref"].rpartition("/")[2]])
    elif alternatives := node.get("anyOf", node.get("oneOf")):
        for branch in alternatives:
            yield from branches(branch)
    else:
        yield node


def sections(node: Node) -> Iterator[Node]:
    """Yields the sections that a node, or each entry of a list, may be."""
    for branch in branches(node):
        if "properties" in branch:
            yield branch
        elif "items" in branch:
            yield from sections(branch["items"])
        elif (named := _named_sections(branch)) is not None:
            yield from sections(named)


def fields(node: Node) -> dict[str, Node]:
    """Returns the keys of a section or of a list's entries, none where `node` has none.

    A key that several forms of a section have takes what it takes in any of them.
    """
    found: dict[str, Node] = {}
    for form in sections(node):
        for key, field in form["properties"].items():
            found[key] = {"anyOf": [found[key], field]} if key in found else field
    return found


def child(node: Node, part: str | int) -> Node | None:
    """Returns the node under key or index `part`, None where the schema has none."""
    for branch in branches(node):
        if isinstance(part, str) and part in branch.get("properties", {}):
            return branch["properties"][part]
        named = _named_sections(branch)
        if named is not None and part != _A_KEY:
            return named
        if isinstance(part, int):
            fixed = branch.get("prefixItems", [])
            if part < len(fixed):
                return fixed[part]
            if "items" in branch:
                return branch["items"]
    return None


def is_free(node: Node) -> bool:
    """Says whether a node takes any keys, as options do."""
    return any(
        branch.get("additionalProperties") not in (None, False) and _named_sections(branch) is None
        for branch in branches(node)
    )


def _named_sections(branch: Node) -> Node | None:
    """Returns the section under each name of a mapping from names to sections, None of others."""
    values = branch.get("additionalProperties")
    return values if isinstance(values, dict) and any(sections(values)) else None


def words(node: Node) -> list[str]:
    """Returns the fixed words that a node accepts."""
    return [word for branch in branches(node) for word in _fixed(branch) if isinstance(word, str)]


def describe(node: Node) -> str:
    """Says in English what a node accepts: `auto or a whole number of at least 1`."""
    phrases: list[str] = []
    for branch in branches(node):
        phrases.extend(_phrases(branch))
    phrases.sort(key=lambda phrase: phrase == "null")
    unique = list(dict.fromkeys(phrases))
    return " or ".join(filter(None, (", ".join(unique[:-1]), unique[-1])))


def _phrases(branch: Node) -> list[str]:
    if fixed := _fixed(branch):
        return [word if isinstance(word, str) else json.dumps(word) for word in fixed]
    if "prefixItems" in branch:
        return [
            f"a list of {len(branch['prefixItems'])}, each {describe(branch['prefixItems'][0])}"
        ]
    if is_free(branch):
        return ["a mapping"]
    if _named_sections(branch) is not None:
        return ["a section for each name"]
    if branch["type"] == "array":
        least = f" of at least {branch['minItems']}" if "minItems" in branch else ""
        return [f"a list{least}, each entry {describe(branch['items'])}"]
    limits = {phrase: branch[key] for key, phrase in _BOUNDS.items() if key in branch}
    bounds = [f"{phrase} {_written(limit)}" for phrase, limit in limits.items()]
    pattern = f"that matches {branch['pattern']}" if "pattern" in branch else ""
    pattern = f"such as {branch['examples'][0]}" if "examples" in branch else pattern
    return [" ".join(filter(None, (_KINDS[branch["type"]], " and ".join(bounds), pattern)))]


def _written(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _fixed(branch: Node) -> list[Any]:
    return branch.get("enum", [branch["const"]] if "const" in branch else [])


def knob_names() -> list[str]:
    """Returns every dotted key that a user can set.

    `[]` marks lists, `NAME` stands for names that the user chooses, and stages for one of them.
    """
    names: list[str] = []
    for key, field in fields(json_schema()).items():
        names.extend(["stages[].name"] if key == "stages" else _names_below(key, field))
    return names


def _names_below(path: str, node: Node) -> Iterator[str]:
    inner = fields(node)
    if not inner:
        yield path
        return
    for key, field in inner.items():
        yield from _names_below(f"{path}{_step_into(node)}.{key}", field)


def _step_into(node: Node) -> str:
    """Returns what stands between the key of a node and the keys of the sections in it."""
    forms = list(branches(node))
    if any("properties" in branch for branch in forms):
        return ""
    return "[]" if any("items" in branch for branch in forms) else ".NAME"
