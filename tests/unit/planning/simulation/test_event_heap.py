from __future__ import annotations

import pytest

from flexrlhf.planning.simulation.event_heap import TASK, TRANSFER, EventHeap


def emptied(heap):
    order = []
    while heap:
        order.append(heap.pop())
    return order


def test_what_ends_first_comes_first():
    heap = EventHeap()
    for number, end_s in enumerate([3.0, 1.0, 2.0]):
        heap.schedule(number, end_s, TASK)
    assert emptied(heap) == [(1.0, 1), (2.0, 2), (3.0, 0)]


def test_at_equal_times_transfers_come_first_then_what_was_started_first():
    heap = EventHeap()
    kinds = {4: TASK, 2: TASK, 5: TRANSFER, 0: TASK, 3: TRANSFER, 1: TASK}
    for number, kind in kinds.items():
        heap.schedule(number, 1.0, kind)
    assert [number for _, number in emptied(heap)] == [3, 5, 0, 1, 2, 4]


def test_a_new_end_takes_the_place_of_the_old_one():
    heap = EventHeap()
    heap.schedule(0, 1.0, TRANSFER)
    heap.schedule(1, 2.0, TRANSFER)
    heap.schedule(0, 3.0, TRANSFER)
    assert len(heap) == 2
    assert heap.ends == {0: 3.0, 1: 2.0}
    heap.schedule(0, 1.5, TRANSFER)
    assert emptied(heap) == [(1.5, 0), (2.0, 1)]


def test_a_number_can_come_again_once_it_has_ended():
    heap = EventHeap()
    heap.schedule(0, 2.0, TRANSFER)
    heap.schedule(0, 1.0, TRANSFER)
    assert heap.pop() == (1.0, 0)
    heap.schedule(0, 4.0, TRANSFER)
    assert emptied(heap) == [(4.0, 0)]


def test_nothing_comes_out_of_an_empty_heap():
    with pytest.raises(IndexError):
        EventHeap().pop()
