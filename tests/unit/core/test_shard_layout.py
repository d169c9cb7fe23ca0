from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexrlhf.core.shard_layout import Box

SHAPE = (5, 4, 3)


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...] = SHAPE) -> Box:
    ends = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    return Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))


def counts(*parts: Box) -> np.ndarray:
    """How many of `parts` hold each index."""
    array = np.zeros(SHAPE, dtype=int)
    for part in parts:
        array[tuple(slice(a, b) for a, b in zip(part.start, part.stop, strict=True))] += 1
    return array


@settings(max_examples=100, deadline=None)
@given(boxes(), boxes())
def test_overlap_and_rest_make_up_the_box(first: Box, second: Box):
    common = first.overlap(second)
    rest = first.minus(second)
    parts = [*rest, *([] if common is None else [common])]
    assert (counts(*parts) == counts(first)).all()
    assert (counts(*rest) * counts(second) == 0).all()
    assert all(part.num_elements for part in parts)


@settings(max_examples=100, deadline=None)
@given(boxes(), st.integers(1, 70))
def test_pieces_cover_the_box_once_and_stay_small(box: Box, limit: int):
    pieces = box.pieces(limit)
    assert (counts(*pieces) == counts(box)).all()
    assert all(0 < piece.num_elements <= limit for piece in pieces)


def test_within_gives_the_place_in_the_local_tensor():
    whole = np.arange(60).reshape(SHAPE)
    outer, inner = Box((1, 1, 0), (5, 4, 3)), Box((2, 1, 1), (4, 3, 2))
    local = whole[1:5, 1:4, 0:3]
    assert (local[inner.within(outer)] == whole[2:4, 1:3, 1:2]).all()


def test_a_box_beyond_the_outer_has_no_place_in_it():
    with pytest.raises(ValueError, match="reaches beyond"):
        Box((0,), (4,)).within(Box((1,), (5,)))


def test_an_empty_box_lies_in_any_other():
    empty = Box((3, 0), (3, 4))
    assert Box((0, 0), (1, 1)).contains(empty)
    assert np.zeros((1, 1))[empty.within(Box((0, 0), (1, 1)))].size == 0


def test_a_tensor_without_dimensions_is_one_element():
    scalar = Box.whole(())
    assert scalar.num_elements == 1
    assert scalar.overlap(scalar) == scalar
    assert scalar.minus(scalar) == []
    assert scalar.pieces(1) == [scalar]
    assert scalar.within(scalar) == ()


def test_a_box_ends_after_it_begins():
    with pytest.raises(ValueError, match="ends before it begins"):
        Box((2,), (1,))
