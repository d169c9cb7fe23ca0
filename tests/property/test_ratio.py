"""Rules of the placement ratio, for any vector."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexrlhf.core.errors import PlanError
from flexrlhf.core.names import ROLES
from flexrlhf.planning.placement.nearest_ratio import nearest_valid
from flexrlhf.planning.placement.ratio import first_fit, is_valid, pack
from flexrlhf.planning.placement.shares import largest_remainder

SHARES = st.sampled_from(sorted({Fraction(a, b) for b in range(1, 13) for a in range(1, b + 1)}))
VECTORS = st.lists(SHARES, min_size=1, max_size=5)


SET = st.lists(st.integers(1, 9), min_size=2, max_size=3).map(
    lambda weights: [Fraction(weight, sum(weights)) for weight in weights]
)
VALID_VECTORS = st.lists(SET | st.just([Fraction(1)]), min_size=1, max_size=3).map(
    lambda sets: [share for held in sets for share in held][:5]
)
GRID = [
    (Fraction(a, 8), Fraction(b, 8), Fraction(c, 8))
    for a, b, c in product(range(1, 9), repeat=3)
    if is_valid((Fraction(a, 8), Fraction(b, 8), Fraction(c, 8)))
]


@given(VECTORS)
def test_first_fit_overfills_no_set_and_leaves_no_two_that_would_fit_together(vector):
    sets = first_fit(vector)
    sums = [sum(vector[i] for i in held) for held in sets]
    assert all(total <= 1 for total in sums)
    assert sorted(i for held in sets for i in held) == [i for i, s in enumerate(vector) if s != 1]
    for held in sets:
        assert held == sorted(held)
    for place, held in enumerate(sets):  # who opened a set had no room in those before
        for earlier in sets[:place]:
            before = [i for i in earlier if i < held[0]]
            assert sum(vector[i] for i in before) + vector[held[0]] > 1


@given(VECTORS | VALID_VECTORS)
def test_a_full_vector_sums_to_a_whole_number(vector):
    if is_valid(vector):
        assert sum(vector).denominator == 1


@given(VALID_VECTORS.filter(is_valid), st.integers(19, 130))
def test_sets_divide_all_devices_into_consecutive_ranges(vector, num_devices):
    roles = ROLES[: len(vector)]
    devices = tuple(range(100, 100 + num_devices))
    packing = pack(dict(zip(roles, vector, strict=True)), devices)
    for role, share in zip(roles, vector, strict=True):
        own = packing.devices[role]
        assert own
        assert abs(len(own) - share * num_devices) < 1
        assert all(b == a + 1 for a, b in pairwise(own))
        if share == 1:
            assert own == devices
    for held in packing.sets:
        joined = [device for role in held for device in packing.devices[role]]
        assert joined == list(devices)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 2000))
def test_largest_remainder_gives_everything_away_and_stays_near(weights, total):
    shares = [Fraction(weight, sum(weights)) for weight in weights]
    counts = largest_remainder(shares, total)
    assert sum(counts) == total
    for count, share in zip(counts, shares, strict=True):
        assert int(share * total) <= count <= int(share * total) + 1


@settings(deadline=None)
@given(st.lists(SHARES, min_size=3, max_size=3))
def test_no_valid_vector_of_a_grid_is_nearer_than_the_nearest(vector):
    def distance(candidate):
        return sum(abs(a - b) for a, b in zip(candidate, vector, strict=True))

    found = nearest_valid(vector, is_valid)
    assert is_valid(found)
    assert all(0 < share <= 1 for share in found)
    assert distance(found) <= min(map(distance, GRID))


@settings(deadline=None)
@given(VALID_VECTORS.filter(is_valid))
def test_a_valid_vector_is_its_own_nearest(vector):
    assert list(nearest_valid(vector, is_valid)) == vector


@settings(deadline=None)
@given(VECTORS.filter(lambda vector: not is_valid(vector)))
def test_what_cannot_be_packed_is_refused_with_a_vector_that_can(vector):
    with pytest.raises(PlanError) as caught:
        pack(dict(zip(ROLES, vector, strict=False)), range(400))
    named = caught.value.do.partition("[")[2].partition("]")[0]
    assert is_valid([Fraction(share) for share in named.split(", ")])
