"""What a run folder says about its run before it begins: config, plan and environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexrlhf.config.loading import request_of
from flexrlhf.config.schema import RunConfig
from flexrlhf.planning.placement.plan import Plan, plans_document
from flexrlhf.runtime.run_folder import write_config, write_json


def write_description(
    config: RunConfig, plans: Sequence[Plan], environment: Mapping[str, Any], folder: Path
) -> None:
    """Writes `config.yaml`, `plan.json` and `environment.json` of a run or stage.

    Raises:
        RunFailed: the folder cannot be written.
    """
    write_config(config, folder)
    write_json(folder / "plan.json", plans_document(request_of(config), plans))
    write_json(folder / "environment.json", environment)
