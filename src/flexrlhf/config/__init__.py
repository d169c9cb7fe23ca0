"""What the user asks for: schema, loading and checks of a run's configuration."""

from __future__ import annotations

from flexrlhf.config.files import require_files
from flexrlhf.config.loading import build_config, dump_config, load_config, load_saved_config
from flexrlhf.config.resolution import (
    BatchSizes,
    RoleOrigin,
    batch_sizes,
    resolve,
    role_origin,
    samples_per_iteration,
    settled,
    spec_of,
)
from flexrlhf.config.schema import RunConfig, Sections, Stage
from flexrlhf.config.schema_tree import json_schema

__all__ = [
    "BatchSizes",
    "RoleOrigin",
    "RunConfig",
    "Sections",
    "Stage",
    "batch_sizes",
    "build_config",
    "dump_config",
    "json_schema",
    "load_config",
    "load_saved_config",
    "require_files",
    "resolve",
    "role_origin",
    "samples_per_iteration",
    "settled",
    "spec_of",
]
