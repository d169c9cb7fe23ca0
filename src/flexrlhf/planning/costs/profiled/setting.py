"""The profile that a config asks for, or that stands for this machine's processor."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from flexrlhf.config.cluster import ClusterSetting, ProfiledMachine
from flexrlhf.config.yaml_text import parse_yaml
from flexrlhf.core.machine import physical_cores
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.cluster.detection import this_machine
from flexrlhf.planning.costs.profiled.profile import Profile, load_profile, profile_from

_TYPICAL: Final = "typical_cpu.yaml"
CORE: Final = "cpu-core"


def profile_of(setting: ClusterSetting) -> Profile | None:
    """Returns the constants of the one device on which a run would be trained here.

    Without a profile, a processor is taken to be like the one that was measured for the package,
    with as many times its speed as it has cores; of a GPU nothing is known.

    Args:
        setting: the value of `cluster`.

    Raises:
        ConfigError: the profile cannot be read, or is none.
    """
    if isinstance(setting, ProfiledMachine):
        return load_profile(setting.profile)
    if setting != "auto":
        return None
    found = this_machine()
    return typical_cpu(found) if found.device_type(0).name == CORE else None


def typical_cpu(cores: Cluster) -> Profile:
    """Returns the packaged profile, scaled to the cores and the memory of this machine."""
    text = (files("flexrlhf.planning.costs.profiled") / _TYPICAL).read_text(encoding="utf-8")
    measured = profile_from(parse_yaml(text, _TYPICAL), _TYPICAL)
    memory_bytes = sum(node.device.memory_bytes * len(node.devices) for node in cores.nodes)
    return measured.scaled_to(physical_cores(), float(memory_bytes))
