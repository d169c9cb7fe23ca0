"""The rules of the placement ratio, with what they give worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from flexrlhf.core.errors import PlanError
from flexrlhf.planning.placement.nearest_ratio import nearest_valid
from flexrlhf.planning.placement.ratio import first_fit, is_valid, pack
from flexrlhf.planning.placement.shares import largest_remainder, shown, vector

ROLES = ("actor", "critic", "reference", "reward")


def shares(*written):
    return [Fraction(str(share)) for share in written]


def packed(*written, devices=8):
    return pack(dict(zip(ROLES, shares(*written), strict=False)), range(devices))


@pytest.mark.parametrize(
    ("written", "sets"),
    [
        ((1, 1, 1, 1), []),
        ((1, 1, 0.5, 0.5), [[2, 3]]),
        ((0.5, 0.5, 0.5, 0.5), [[0, 1], [2, 3]]),
        ((1, 0.5, 0.3, 0.2), [[1, 2, 3]]),
        ((0.1, 0.5, 0.3, 0.1), [[0, 1, 2, 3]]),
        ((0.5, 0.5, 0.8, 0.2), [[0, 1], [2, 3]]),
        ((0.5, 0.8, 0.5, 0.2), [[0, 2], [1, 3]]),  # joins the first set with room
        ((0.6, 0.3, 0.7, 0.4), [[0, 1], [2], [3]]),
    ],
)
def test_first_fit(written, sets):
    assert first_fit(shares(*written)) == sets


@pytest.mark.parametrize(
    ("written", "is_right"),
    [
        ((1, 1, 0.5, 0.5), True),
        ((0.25, 0.25, 0.25, 0.25), True),
        (("1/3", "1/3", "1/3"), True),
        ((0.1, 0.2, 0.7), True),  # as floats they sum to 0.9999999999999999
        ((0.33, 0.33, 0.33), False),
        ((1, 1, 0.5, 0.4), False),
        ((1, 1, 1, 0.5), False),
        ((0.6, 0.3, 0.7, 0.4), False),  # sums to 2, but first fit fills no set
    ],
)
def test_a_vector_is_valid_if_first_fit_fills_every_set(written, is_right):
    assert is_valid(shares(*written)) is is_right


def test_the_paper_s_interleaving():
    packing = packed(1, 1, 0.5, 0.5)
    assert packing.devices == {
        "actor": (0, 1, 2, 3, 4, 5, 6, 7),
        "critic": (0, 1, 2, 3, 4, 5, 6, 7),
        "reference": (0, 1, 2, 3),
        "reward": (4, 5, 6, 7),
    }
    assert packing.sets == (("reference", "reward"),)
    assert packing.rounding == ""


def test_two_sets_each_take_all_devices():
    packing = packed(0.5, 0.5, 0.75, 0.25)
    assert packing.devices["actor"] == packing.devices["reference"][:4] == (0, 1, 2, 3)
    assert packing.devices["critic"] == (4, 5, 6, 7)
    assert packing.devices["reward"] == (6, 7)


def test_shares_that_do_not_divide_the_devices_go_by_largest_remainder_and_are_shown():
    packing = packed(1, 0.5, 0.3, 0.2)  # 4, 2.4 and 1.6 of 8
    assert [len(packing.devices[role]) for role in ROLES] == [8, 4, 2, 2]
    assert packing.rounding == (
        "reference's 0.3 of 8 devices, 2.4, is 2; reward's 0.2 of 8 devices, 1.6, is 2"
    )
    thirds = packed("1/3", "1/3", "1/3")
    assert [len(devices) for devices in thirds.devices.values()] == [3, 3, 2]


@pytest.mark.parametrize(
    ("written", "total", "counts"),
    [
        ((0.5, 0.5), 7, [4, 3]),  # equal remainders: in order
        ((0.1, 0.1, 0.8), 8, [1, 1, 6]),  # 0.8, 0.8, 6.4
        (("1/7", "6/7"), 7, [1, 6]),
    ],
)
def test_largest_remainder(written, total, counts):
    assert largest_remainder(shares(*written), total) == counts


def test_a_role_without_a_device_is_refused():
    with pytest.raises(PlanError) as caught:
        packed(0.1, 0.5, 0.3, 0.1, devices=4)
    assert str(caught.value).splitlines() == [
        "placement.ratio = [0.1, 0.5, 0.3, 0.1]: reward's 0.1 of 4 devices is none.",
        "  Each role gets at least one device.",
        "  Give reward a larger share, or more devices.",
    ]


def test_a_vector_that_cannot_be_packed_is_refused_with_the_nearest_one():
    with pytest.raises(PlanError) as caught:
        packed(1, 1, 0.5, 0.4)
    assert str(caught.value).splitlines() == [
        "placement.ratio = [1, 1, 0.5, 0.4] for actor, critic, reference, reward: "
        "reference + reward = 0.9.",
        "  Roles below 1 join, in this order, the first set that they do not overfill; each set "
        "sums to 1.",
        "  The nearest ratio that does: [1, 1, 0.5, 0.5].",
    ]


@pytest.mark.parametrize(
    ("written", "nearest"),
    [
        ((1, 1, 1, 0.5), "[1, 1, 1, 1]"),
        ((1, 1, 0.6, 0.5), "[1, 1, 0.5, 0.5]"),
        ((0.33, 0.33, 0.33), "[1/3, 1/3, 1/3]"),
        ((0.9, 0.9, 0.9, 0.9), "[1, 1, 1, 1]"),
        ((0.5, 0.5, 0.5, 0.45), "[0.5, 0.5, 0.5, 0.5]"),
        ((0.05, 0.05), "[0.5, 0.5]"),
    ],
)
def test_nearest_valid(written, nearest):
    assert vector(nearest_valid(shares(*written), is_valid)) == nearest


def test_a_valid_vector_is_its_own_nearest():
    written = shares(1, 0.5, 0.3, 0.2)
    assert nearest_valid(written, is_valid) == tuple(written)


@pytest.mark.parametrize("share", [0, -0.5, 1.5])
def test_shares_out_of_range(share):
    with pytest.raises(PlanError, match="a share is out of range"):
        packed(1, 1, 1, share)


@pytest.mark.parametrize(
    ("share", "text"), [("1", "1"), ("1/2", "0.5"), ("1/3", "1/3"), ("0.125", "0.125")]
)
def test_shares_are_shown_as_users_write_them(share, text):
    assert shown(Fraction(share)) == text
