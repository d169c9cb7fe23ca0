"""What exists when a loop begins is not looked through again until it ends."""

from __future__ import annotations

import gc
import weakref

import pytest

from flexrlhf.runtime.garbage import old_objects_apart


class Node:
    """Refers to itself, so that only a collection ends it."""

    def __init__(self) -> None:
        self.itself = self


def test_old_objects_are_apart_while_it_lasts_and_new_garbage_is_collected():
    old = Node()
    before = len(gc.get_objects())
    with old_objects_apart():
        assert len(gc.get_objects()) < before / 10
        gone = weakref.ref(Node())
        gc.collect()
        assert gone() is None
    assert len(gc.get_objects()) > before / 2
    gone = weakref.ref(old)
    del old
    gc.collect()
    assert gone() is None


def test_garbage_of_before_does_not_stay_until_the_end():
    gone = weakref.ref(Node())
    with old_objects_apart():
        assert gone() is None


def test_objects_come_back_after_an_error():
    with pytest.raises(RuntimeError), old_objects_apart():
        raise RuntimeError
    assert gc.get_freeze_count() == 0
