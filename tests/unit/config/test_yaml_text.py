"""YAML: numbers of version 1.2, keys given once, and errors with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexrlhf.config.yaml_text import parse_yaml, read_yaml, write_yaml
from flexrlhf.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("-2E5", -2e5),
        ("+1.5e3", 1500.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e5x", "1e5x"),
        ("e5", "e5"),
        ("1.2.3", "1.2.3"),
        ("2024-01-01", "2024-01-01"),
        ("17", 17),
        ("null", None),
        ("true", True),
        ("", None),
    ],
)
def test_plain_words(text, value):
    assert parse_yaml(text, "test") == value
    assert type(parse_yaml(text, "test")) is type(value)


@pytest.mark.parametrize(
    "value", ["1e-6", "2024-01-01", "no", 1e-6, {"a": [1, {"b": None}]}, "a\x85b\u2028"]
)
def test_written_values_read_back(value):
    assert parse_yaml(write_yaml(value), "test") == value


def test_a_shared_value_is_written_out():
    shared = [1, 2]
    assert "&" not in write_yaml({"a": shared, "b": shared})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: [1, 2\nc: 3", "test, line 3: not valid YAML: while parsing a flow sequence"),
        ("a: 1\n  b: 2", "test, line 2: not valid YAML: mapping values are not allowed here"),
        ("a: 1\nb: 2\na: 3", "test, line 3: key 'a' is given twice.\n  It stands in line 1"),
        ("a: {x: 1}\nb: {x: 1, y: {z: 0, z: 1}}", "test, line 2: key 'z' is given twice"),
        ("? [a]\n: 1", "line 1: a key is a list or mapping"),
        ("a: &x [*x]", "test, line 1: an anchor contains itself"),
        ("a: *nowhere", "line 1: not valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 2", "line 2: not valid YAML"),
        ("a: !!python/object:os.system {}", "line 1: not valid YAML: could not determine"),
        ("a: !!int x", "a value does not fit its tag"),
        ("a: !!bool x", "a value does not fit its tag"),
        ("a: !!timestamp x", "a value does not fit its tag"),
        ("a: " + "[" * 5000, "test: lists or sections are nested too deep"),
        ("a: \x01", "not valid YAML: unacceptable character"),
    ],
)
def test_what_is_no_yaml_is_said_with_its_line(text, said):
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "test")
    assert said in str(caught.value)


def test_every_complaint_has_three_parts():
    for text in (
        "a: 1\na: 2",
        "a: &x [*x]",
        "a: !!int x",
        "? [a]\n: 1",
        "a: \x01",
        "[",
        "[" * 5000,
    ):
        with pytest.raises(ConfigError) as caught:
            parse_yaml(text, "test")
        assert all((caught.value.wrong, caught.value.right, caught.value.do)), text


def test_anchors_that_multiply_are_refused_at_once():
    """Nine to the power of nine values out of ten lines would keep a machine busy for hours."""
    lines = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 10)]
    with pytest.raises(ConfigError, match="has over 100000 values"):
        parse_yaml("\n".join(["a0: &a0 [x]", *lines]), "test")


def test_anchors_may_be_used():
    assert parse_yaml("a: &x {k: 1}\nb: *x", "test") == {"a": {"k": 1}, "b": {"k": 1}}


def test_a_missing_file_and_a_folder_are_said(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.yaml does not exist"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)


def test_a_binary_file_is_said(tmp_path: Path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"ab\xff\xfe")
    with pytest.raises(ConfigError, match="byte 2 is not UTF-8"):
        read_yaml(path)
