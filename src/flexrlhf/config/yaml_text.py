"""YAML in and out, such that what is written reads back the same.

Differs from PyYAML in three points: `1e-6` is a number, as in YAML 1.2; dates stay text; a key that
is written twice is an error instead of silently replacing the first.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from flexrlhf.core.errors import ConfigError

_FLOAT = re.compile(
    r"^[-+]?(?:(?:[0-9][0-9_]*)?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*\.(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Returns PyYAML's rules for plain words, with dates left out and floats as in YAML 1.2."""
    replaced = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    rules = {
        first: [(tag, pattern) for tag, pattern in entries if tag not in replaced]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for first in "-+.0123456789":
        rules.setdefault(first, []).insert(0, ("tag:yaml.org,2002:float", _FLOAT))
    return rules


_MOST_VALUES: Final = 100_000


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _resolvers()


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _resolvers()

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the parent's signature
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Quotes text with line breaks of Unicode, which PyYAML would write as plain ones."""
    style = '"' if set(text) & set("\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def read_yaml(path: Path, what: str = "config") -> Any:
    """Returns the content of a YAML file.

    Args:
        path: the file.
        what: what it holds, in the user's words, for errors.

    Raises:
        ConfigError: the file is missing, not readable, or not YAML; says where.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"The {what} file {path} does not exist.",
            f"The current folder is {Path.cwd()}.",
            "Give the path of a YAML file.",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not a text file: byte {error.start} is not UTF-8.",
            f"A {what} is a YAML file in UTF-8.",
            "Give the path of a YAML file, or save this one as UTF-8.",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}.",
            f"A {what} is a file of text.",
            "Give the path of a YAML file.",
        ) from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """Returns the value that a YAML text stands for.

    Raises:
        ConfigError: the text is not YAML, gives a key twice, contains itself, or is nested or
            repeated beyond any use.
    """
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        _check_tree(root, source)
        return loader.construct_document(root)
    except ConfigError:  # a ValueError too
        raise
    except RecursionError:
        raise ConfigError(
            f"{source}: lists or sections are nested too deep to be read.",
            "A config has a handful of levels.",
            "Look for brackets that are not closed, or for indentation that grows.",
        ) from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        said = ", ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(
            f"{source}{line}: not valid YAML: {said}.",
            "YAML is keys and values, set in by spaces.",
            "Look at indentation, colons and quotes there and just above.",
        ) from None
    except yaml.YAMLError as error:
        first_line = str(error).partition("\n")[0]
        raise ConfigError(
            f"{source}: not valid YAML: {first_line}.",
            "YAML is plain text.",
            "Remove what is no text.",
        ) from None
    except (ValueError, LookupError, AttributeError) as error:
        # `!!int x`, `!!bool x`: PyYAML passes on what Python's own types say.
        raise ConfigError(
            f"{source}: a value does not fit its tag: {error}.",
            "A tag such as !!int says what its value is.",
            "Correct the value, or remove the tag.",
        ) from None
    finally:
        if loader is not None:
            loader.dispose()


def write_yaml(value: Any) -> str:
    """Returns `value` as block-style YAML; `parse_yaml` reads it back the same."""
    return yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=100,
    )


def _check_tree(root: yaml.Node, source: str) -> None:
    """Looks at every node as often as anchors repeat it, since so often it will be copied."""
    num_values = 0
    waiting: list[tuple[yaml.Node, tuple[yaml.Node, ...]]] = [(root, ())]
    while waiting:
        node, above = waiting.pop()
        num_values += 1
        _refuse_endless(node, above, num_values, f"{source}, line {node.start_mark.line + 1}")
        if isinstance(node, yaml.MappingNode):
            _check_keys(node, source)
            waiting.extend((value, (*above, node)) for _, value in reversed(node.value))
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend((value, (*above, node)) for value in reversed(node.value))


def _refuse_endless(
    node: yaml.Node, above: tuple[yaml.Node, ...], num_values: int, place: str
) -> None:
    if any(node is ancestor for ancestor in above):
        raise ConfigError(
            f"{place}: an anchor contains itself.",
            "An anchor stands for a value that ends.",
            "Write the values out.",
        )
    if num_values > _MOST_VALUES:
        raise ConfigError(
            f"{place}: with what its anchors repeat, the text has over {_MOST_VALUES} values.",
            "A config has a few hundred.",
            "Write the values out, without anchors of anchors.",
        )


def _check_keys(node: yaml.MappingNode, source: str) -> None:
    first_lines: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(
                f"{source}, line {line}: a key is a list or mapping, not a word.",
                "A key is a word such as training.",
                "Look at brackets and question marks there.",
            )
        if key.value in first_lines:
            raise ConfigError(
                f"{source}, line {line}: key {key.value!r} is given twice.",
                f"It stands in line {first_lines[key.value]} already.",
                "Keep one of the two.",
            )
        first_lines[key.value] = line
