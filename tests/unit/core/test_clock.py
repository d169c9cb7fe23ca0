from __future__ import annotations

import time

from flexrlhf.core.clock import Clock, WallClock


def test_wall_clock_counts_from_its_making_and_never_goes_back():
    clock: Clock = WallClock()
    readings = [clock.now_s() for _ in range(100)]
    assert 0.0 <= readings[0] < 1.0
    assert readings == sorted(readings)


def test_clocks_with_one_origin_agree():
    origin_s = time.monotonic() - 100.0
    first, second = WallClock(origin_s).now_s(), WallClock(origin_s).now_s()
    assert 100.0 <= first <= second < 101.0
