from __future__ import annotations

import ast
import time
from pathlib import Path

import numpy as np
import pytest

from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.child_process import ChildDied, ChildProcess, as_literal

CHILD = """
import os, sys
from flexrlhf.core.errors import DataError
from flexrlhf.learning.data.child_process import serve

def answer(request):
    if request == "refuse":
        raise DataError("wrong", "right", "do")
    if request == "hang":
        while True:
            pass
    if request == "exit":
        os._exit(3)
    if request == "fill memory":
        return bytes(1 << 40)
    if request == "hash":
        return hash("text")
    if request == "print":
        print("loud", flush=True)
        sys.stdin.read()
    return request

serve(answer, deadline_s=0.5)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    (tmp_path / "answering_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = ChildProcess("answering_child")
    yield process
    process.close()


def test_values_keep_their_types(child):
    value = {"a": (1, [2.5, None]), 3: {"x", "y"}, "text": "line\nbreak \ud800 é", "b": b"\x00"}
    assert child.ask(value) == value
    assert isinstance(child.ask(value)["a"], tuple)


def test_foreign_code_may_print_and_read(child):
    assert child.ask("print") == "print"
    assert child.ask(2) == 2


def test_refusal_crosses_the_border(child):
    with pytest.raises(DataError) as caught:
        child.ask("refuse")
    assert caught.value.args == ("wrong", "right", "do")


@pytest.mark.parametrize("request_", ["hang", "exit", "fill memory"])
def test_death_is_told_and_survived(child, request_):
    child.ask(1)
    begin = time.monotonic()
    with pytest.raises(ChildDied):
        child.ask(request_)
    assert time.monotonic() - begin < 10
    assert child.ask(2) == 2


def test_texts_hash_alike_in_every_child(child):
    first = child.ask("hash")
    child.close()
    assert child.ask("hash") == first


def test_child_ends_with_its_owner(tmp_path, monkeypatch):
    (tmp_path / "naming_child.py").write_text(
        "import os\n"
        "from flexrlhf.learning.data.child_process import serve\n"
        "serve(lambda request: os.getpid())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = ChildProcess("naming_child")
    folder = Path(f"/proc/{process.ask(None)}")
    assert folder.exists()
    del process
    assert not folder.exists()


def test_as_literal():
    value = [np.str_("a"), np.float32(0.5), np.arange(2), True, float("inf"), 1 + 2j, range(2)]
    literal = as_literal(value)
    assert literal == ["a", 0.5, [0, 1], True, "inf", "(1+2j)", "range(0, 2)"]
    assert ast.literal_eval(repr(literal)) == literal
