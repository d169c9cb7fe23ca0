"""The declared classes of hardware and software generation, and their constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib.resources import files
from typing import Any, Final

import yaml

from flexrlhf.planning.costs.calibration import DEFAULT, Calibration

_TABLE: Final = "calibration.yaml"
_FAMILIES: Final[Mapping[str, str]] = {
    "V100-32G": "a100",
    "A100-40G": "a100",
    "A100-64G": "a100",
    "A100-80G": "a100",
    "A800-80G": "a800",
    "A6000-48G": "a800",
    "L40S-48G": "a800",
    "A10": "a800",
    "H20-96G": "h20",
    "GB200": "blackwell",
    "B200": "blackwell",
}
"""Volta stands with A100, since what was measured on it ran the same software of 2023; A800 was
measured with that of 2024. Devices that are not listed are `hopper`."""
_UNNAMED_UNTIL: Final = 2024


def _read() -> Mapping[str, Calibration]:
    text = (files("flexrlhf.planning.costs") / _TABLE).read_text(encoding="utf-8")
    document: dict[str, dict[str, Any]] = yaml.safe_load(text)
    known = {field.name for field in fields(Calibration)}
    return {
        name: Calibration(name=name, **{k: v for k, v in constants.items() if k in known})
        for name, constants in document.items()
    }


CLASSES: Final[Mapping[str, Calibration]] = _read()


def class_name(device: str | None, *, year: int, part: str = "") -> str:
    """Returns the name of a class.

    Args:
        device: its name, None where a source does not name it.
        year: generation of the software: 2023, 2024 or 2025.
        part: `inference_only` for an engine and `trainer_only` for a trainer that is measured
            without a loop around it; else anything.
    """
    if part == "inference_only":
        return "engine"
    if part == "trainer_only":
        return "trainer"
    if device is None and year <= _UNNAMED_UNTIL:
        return "unnamed"
    return _FAMILIES.get(device or "", "hopper")


def class_of(device: str | None, *, year: int, part: str = "") -> Calibration:
    """Returns the constants of a class; see `class_name`."""
    return CLASSES.get(class_name(device, year=year, part=part), DEFAULT)
