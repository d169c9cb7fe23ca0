"""The declared classes of hardware and software generation, and their constants."""

from __future__ import annotations

from flexrlhf.planning.costs.calibration import DEFAULT, Calibration


def class_of(device: str | None, *, year: int, part: str) -> Calibration:
    """Returns the constants of a class.

    Args:
        device: its name, None where a source does not name it.
        year: generation of the software.
        part: the strategy, since engines and trainers alone are measured without a loop around.
    """
    del device, year, part
    return DEFAULT
