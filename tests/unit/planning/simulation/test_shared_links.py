from __future__ import annotations

import pytest

from flexrlhf.planning.simulation.shared_links import SharedLinks, fair_rates


def all_ends(capacities, flows):
    """Ends by number, of flows given as (start, bytes, links); an own clock, in order of time."""
    links = SharedLinks(capacities)
    ends, done = {}, {}
    starts = sorted((start_s, number) for number, (start_s, _, _) in enumerate(flows))
    while starts or ends:
        first_end = min(ends.items(), key=lambda item: item[1]) if ends else None
        if starts and (first_end is None or starts[0][0] < first_end[1]):
            now_s, number = starts.pop(0)
            ends |= links.start(number, flows[number][2], flows[number][1], now_s)
        else:
            number, now_s = first_end
            del ends[number]
            done[number] = now_s
            ends |= links.end(number, now_s)
    return done, links


def test_a_flow_alone_is_as_fast_as_its_narrowest_link():
    assert fair_rates({0: ("wide", "narrow")}, {"wide": 100.0, "narrow": 10.0}) == {0: 10.0}


def test_flows_of_one_link_get_equal_parts():
    assert fair_rates({0: ("a",), 1: ("a",), 2: ("a",)}, {"a": 90.0}) == dict.fromkeys(range(3), 30)


def test_what_a_flow_cannot_use_goes_to_the_others():
    # Flow 0 is held at 10 by b, so that 1 and 2 share the other 80 of a.
    flows = {0: ("a", "b"), 1: ("a",), 2: ("a",)}
    assert fair_rates(flows, {"a": 90.0, "b": 10.0}) == {0: 10.0, 1: 40.0, 2: 40.0}


def test_a_long_flow_over_three_links():
    # c gives its two flows 2 each; b then 8 to its other one; a gives flow 0's rest to flow 1.
    flows = {0: ("a", "b", "c"), 1: ("a",), 2: ("b",), 3: ("c",)}
    capacities = {"a": 6.0, "b": 10.0, "c": 4.0}
    assert fair_rates(flows, capacities) == {0: 2.0, 1: 4.0, 2: 8.0, 3: 2.0}


def test_two_flows_by_hand():
    # Alone until 1 s, 200 left; together until flow 1 has sent its 100 at 3 s; 100 left, alone.
    done, links = all_ends({"a": 100.0}, [(0.0, 300.0, ("a",)), (1.0, 100.0, ("a",))])
    assert done == {0: 4.0, 1: 3.0}
    assert links.loads == {"a": ((0.0, 100.0), (4.0, 0.0))}


def test_three_flows_by_hand():
    # 0 s: flow 0 alone on a at 60.
    # 1 s: flow 1 joins, 30 each; flow 0 has 90 left, flow 1 has 90.
    # 2 s: flow 2 joins over a and b, and b lets it have 10: the others get 25. Both have 60 left.
    # 4.4 s: flows 0 and 1 have sent all; flow 2 has sent 24 of its 44 and stays at 10.
    # 6.4 s: flow 2 has sent all.
    flows = [(0.0, 150.0, ("a",)), (1.0, 90.0, ("a",)), (2.0, 44.0, ("a", "b"))]
    done, links = all_ends({"a": 60.0, "b": 10.0}, flows)
    assert done == pytest.approx({0: 4.4, 1: 4.4, 2: 6.4})
    assert links.loads["a"] == ((0.0, 60.0), (pytest.approx(4.4), 10.0), (pytest.approx(6.4), 0.0))
    assert links.loads["b"] == ((2.0, 10.0), (pytest.approx(6.4), 0.0))


def test_equal_flows_end_at_the_same_moment():
    done, _ = all_ends({"a": 7.0}, [(0.1, 3.3, ("a",)) for _ in range(3)])
    assert done[0] == done[1] == done[2]


def test_flows_of_other_links_are_left_alone():
    links = SharedLinks({"a": 100.0, "b": 100.0})
    links.start(0, ("a",), 50.0, 0.0)
    assert links.start(1, ("b",), 50.0, 0.1) == {1: 0.6}
    assert links.start(2, ("b",), 50.0, 0.1) == pytest.approx({1: 1.1, 2: 1.1})


def test_only_new_rates_give_new_ends():
    # Flow 1 is held at 10 by b; that it must share a with one more changes nothing for it.
    links = SharedLinks({"a": 100.0, "b": 10.0})
    links.start(1, ("a", "b"), 50.0, 0.0)
    assert links.start(2, ("a",), 90.0, 0.0) == {2: 1.0}


def test_a_link_that_is_named_twice_is_occupied_once():
    links = SharedLinks({"a": 10.0})
    assert links.start(0, ("a", "a"), 20.0, 0.0) == {0: 2.0}


def test_what_is_no_link_is_refused():
    with pytest.raises(ValueError, match=r"no link 'b', only a\."):
        SharedLinks({"a": 1.0}).start(0, ("b",), 1.0, 0.0)
    with pytest.raises(ValueError, match=r"'a' carries 0\.0 bytes/s"):
        SharedLinks({"a": 0.0})
