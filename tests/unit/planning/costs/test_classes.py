"""Classes of hardware and software."""

from __future__ import annotations

import pytest

from flexrlhf.planning.cluster.catalogue import DEVICE_TYPES
from flexrlhf.planning.costs.classes import CLASSES, class_name, class_of


def test_there_are_at_most_eight_classes_each_with_a_source():
    assert len(CLASSES) <= 8
    assert all("rows of" in calibration.source for calibration in CLASSES.values())


@pytest.mark.parametrize("device", [*DEVICE_TYPES, None])
@pytest.mark.parametrize("year", [2023, 2024, 2025])
@pytest.mark.parametrize("part", ["", "trainer_only", "inference_only"])
def test_every_device_has_a_class(device, year, part):
    assert class_name(device, year=year, part=part) in CLASSES


def test_unnamed_devices_of_2024_are_a_class_of_their_own():
    assert class_of(None, year=2024).name == "unnamed"
    assert class_of("H100-80G", year=2024).name == "hopper"
