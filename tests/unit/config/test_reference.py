"""The keys themselves: which there are, that each is described, and that the pages are current."""

from __future__ import annotations

from pathlib import Path

from flexrlhf.config.reference import reference_page, schema_text
from flexrlhf.config.schema import RunConfig
from flexrlhf.config.schema_tree import json_schema, knob_names

ROOT = Path(__file__).parents[3]
MAKE = "run `python -m flexrlhf.config.reference`"


def test_the_knobs_are_these():
    """A new knob is a decision: add it to knobs.txt with a reason why no default would do."""
    listed = (Path(__file__).parent / "knobs.txt").read_text().split()
    assert knob_names() == listed


def test_every_field_is_described():
    definitions = json_schema()["$defs"].values()
    for definition in (node for node in definitions if "properties" in node):
        assert definition["description"], definition["title"]
        for name, field in definition["properties"].items():
            assert field.get("description"), f"{definition['title']}.{name}"


def test_the_pages_are_up_to_date():
    folder = ROOT / "docs" / "reference"
    assert (folder / "config.md").read_text(encoding="utf-8") == reference_page(), MAKE
    assert (folder / "config.schema.json").read_text(encoding="utf-8") == schema_text(), MAKE


def test_the_page_has_every_section():
    page = reference_page()
    for section in RunConfig.model_fields:
        assert f"## `{section}`" in page
    assert "### `model.actor`, `model.critic`, `model.reference`, `model.reward`" in page
    assert "| `clip` | a number above 0 and below 1 | `0.2` |" in page
