"""In a real run new weights leave the process that trains them once, for all that generate."""

from __future__ import annotations

import ast
import logging
import re
from typing import Any

import pytest
from placed_runs import PlacedRuns

pytestmark = pytest.mark.ray


def receipts_of(text: str) -> list[dict[str, Any]]:
    return [ast.literal_eval(found) for found in re.findall(r"installed (\{.*\})", text)]


def test_three_replicas_give_each_other_what_one_trainer_gave(
    placed_runs: PlacedRuns, caplog: pytest.LogCaptureFixture
):
    sections = {"placement": {"pools": {"train": 0.25, "generate": 0.75}}}
    config, plan = placed_runs.plan("grpo", 4, iterations=2, changes=sections)
    assert len(plan.placement["shadow_actor"].devices) == 3
    with caplog.at_level(logging.INFO):
        placed_runs.on_workers(config, plan)
    receipts = receipts_of(caplog.text)
    assert sorted(receipt["version"] for receipt in receipts) == [1, 1, 1, 2, 2, 2]
    for version in (1, 2):
        of_version = [one for one in receipts if one["version"] == version]
        (trainer,) = set.intersection(*(set(one["bytes_by_source"]) for one in of_version))
        sent_bytes = sum(one["bytes_by_source"][trainer] for one in of_version)
        assert sent_bytes == of_version[0]["num_bytes"]
        assert len({one["source_checksum"] for one in of_version}) == 1
