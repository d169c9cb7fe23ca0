"""Checks a description of a cluster that stands alone: the content of a cluster file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from flexrlhf.config.cluster import ClusterDescription
from flexrlhf.config.problems import config_error, schema_problems
from flexrlhf.config.section import Section


class _Holder(Section):
    """Puts the description where it stands in a config, so that problems find its schema."""

    cluster: ClusterDescription


def parse_cluster(document: Mapping[str, Any], source: str) -> ClusterDescription:
    """Returns the description that a mapping holds.

    Args:
        document: the keys of the section `cluster`.
        source: what to call the document in errors.

    Raises:
        ConfigError: lists every key that is unknown, missing or out of range.
    """
    try:
        return _Holder.model_validate({"cluster": document}).cluster
    except ValidationError as error:
        problems = schema_problems(error).values()
    raise config_error(
        source,
        [replace(problem, key=problem.key.removeprefix("cluster.")) for problem in problems],
    )
