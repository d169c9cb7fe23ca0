"""The cluster that a config asks for."""

from __future__ import annotations

from flexrlhf.config.cluster import ClusterDescription
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.detection import this_machine
from flexrlhf.planning.cluster.file_form import build_cluster, load_cluster


def requested_cluster(setting: str | ClusterDescription) -> Cluster:
    """Returns the cluster that the value of `cluster` means.

    Args:
        setting: `auto` for this machine, the path of a file, or the section.

    Raises:
        ConfigError: the file cannot be read, or the description is wrong.
    """
    if isinstance(setting, ClusterDescription):
        return build_cluster(setting, "cluster")
    return this_machine() if setting == "auto" else load_cluster(setting)
