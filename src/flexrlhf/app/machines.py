"""Which machines a config means, and what must be installed to compute on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from flexrlhf.config.cluster import RayCluster, is_one_device
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.plugins import require_package

if TYPE_CHECKING:
    from flexrlhf.planning.cluster.cluster import Cluster


def is_one_device_run(config: RunConfig) -> bool:
    """Whether every stage runs in one process on one device of this machine."""
    return all(is_one_device(stage.cluster) for _, stage in config.stage_configs())


def joined_machines(config: RunConfig) -> Cluster | None:
    """Returns the machines of the Ray cluster that a config names; None where it names none.

    Raises:
        EngineMissing: it names one, and what joins it is not installed.
    """
    setting = next((s.cluster for _, s in config.stage_configs()), config.cluster)
    if not isinstance(setting, RayCluster):
        return None
    for package in ("ray", "psutil"):
        require_package(package, needed_by="Looking at a Ray cluster (cluster.ray)")
    from flexrlhf.runtime.ray_cluster.joined import joined_cluster

    return joined_cluster(setting)


def cluster_of_run(config: RunConfig) -> Cluster:
    """Returns the machines that a run of workers is trained on."""
    from flexrlhf.planning.search.stage_plans import cluster_of

    setting = next(stage.cluster for _, stage in config.stage_configs())
    return joined_machines(config) or cluster_of(setting)


def threads_of(config: RunConfig, cluster: Cluster | None) -> int | Literal["auto"]:
    """Workers compute with one thread each, unless the user asks for more."""
    if cluster is None or cluster.num_devices == 1 or config.training.threads != "auto":
        return config.training.threads
    return 1


def require_packages(needed_by: str) -> None:
    """Checks that what comes with `flexrlhf[train]` is installed, since planning needs none of it.

    Raises:
        EngineMissing: something is not.
    """
    for package in ("torch", "transformers", "safetensors"):
        require_package(package, needed_by=needed_by)
