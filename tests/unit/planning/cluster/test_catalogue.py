"""Devices and links of the catalogue against figures from other places than its own sources."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.cluster.catalogue import DEVICE_TYPES, device_type, usual_link
from flexrlhf.planning.cluster.device_type import NUMBER_TYPES, DeviceType
from flexrlhf.planning.cluster.link_catalogue import INSIDE_LINKS, link_type

ROOT = Path(__file__).parents[4]
GIB = 2**30


def test_every_gpu_of_the_published_measurements_is_there():
    with (ROOT / "benchmarks" / "published" / "published_throughput.csv").open() as file:
        written = {row["gpu"] for row in csv.DictReader(file)}
    names = {name for name in written if name != "unstated" and not name.startswith("mixed:")}
    assert len(names) == 11
    assert names <= set(DEVICE_TYPES)
    assert {"A10", "RTX-4090", "cpu-core"} <= set(DEVICE_TYPES)


@pytest.mark.parametrize(
    ("name", "memory_gb", "bandwidth_gb", "float16_tflops", "inside_gb"),
    [
        # llm-analysis, gpu_configs
        ("V100-32G", 32, 900, 125, 150),
        ("A100-40G", 40, 1555, 312, 300),
        ("A100-80G", 80, 2039, 312, 300),
        ("H100-80G", 80, 3350, 989, 450),
        # LLM-Prof, hardware_spec.md (both directions of the link halved)
        ("A10", 24, 600, 125, 32),
        ("H20-96G", 96, 4022, 148, 450),
        ("A800-80G", 80, 2039, 312, 200),
        ("H800-80G", 80, 3350, 989, 200),
        ("H200-141G", 141, 4800, 989, 450),
        ("B200", 180, 8000, 2250, 900),
        # G. Lockwood's garden, the GB200 variant of B200
        ("GB200", 186, 8000, 2500, 900),
        # The measurements' own words: 600 GB/s of NVLink3 both ways
        ("A100-64G", 64, 1640, 358, 300),
    ],
)
def test_devices(name, memory_gb, bandwidth_gb, float16_tflops, inside_gb):
    device = device_type(name)
    assert 0.98 * memory_gb * 1e9 < device.memory_bytes < 1.08 * memory_gb * 1e9
    assert device.memory_bandwidth == pytest.approx(bandwidth_gb * 1e9, rel=0.006)
    assert device.peak_flops("float16") == pytest.approx(float16_tflops * 1e12, rel=0.002)
    assert usual_link(device).bandwidth == pytest.approx(inside_gb * 1e9, rel=0.02)


@pytest.mark.parametrize("device", DEVICE_TYPES.values(), ids=lambda device: device.name)
def test_every_device_is_plausible(device: DeviceType):
    assert set(device.flops) <= set(NUMBER_TYPES)
    assert list(device.flops) == [dtype for dtype in NUMBER_TYPES if dtype in device.flops]
    peaks = list(device.flops.values())
    assert peaks == sorted(peaks), "narrower numbers are never slower"
    assert 1e9 < device.memory_bytes < 200 * GIB
    assert device.host_bandwidth <= device.memory_bandwidth
    assert device.price_per_hour is None or 0.5 < device.price_per_hour < 10
    assert device.source
    assert usual_link(device).name in INSIDE_LINKS


def test_what_has_no_units_runs_on_the_next_wider_ones():
    v100, h100 = device_type("V100-32G"), device_type("H100-80G")
    assert v100.peak_flops("bfloat16") == v100.peak_flops("float8") == 125e12
    assert v100.peak_flops("tensorfloat32") == v100.peak_flops("float32") == 15.7e12
    assert h100.peak_flops("float8") == pytest.approx(2 * h100.peak_flops("bfloat16"), rel=1e-3)
    assert device_type("cpu-core").peak_flops("bfloat16") == 96e9


def test_an_unknown_number_type_is_refused():
    with pytest.raises(
        ConfigError, match=r"'bfloat15' is no number type\. Did you mean 'bfloat16'"
    ):
        device_type("A10").peak_flops("bfloat15")


def test_wide_numbers_have_no_substitute():
    with pytest.raises(
        ConfigError, match=r"No peak is known of A10 for float64\.\n  It has: float3"
    ):
        device_type("A10").peak_flops("float64")


def test_an_unknown_device_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError) as caught:
        device_type("A100-80GB")
    assert caught.value.wrong.endswith("Did you mean 'A100-80G'?")
    assert "H200-141G" in caught.value.right
    assert "devices" in caught.value.do


def test_devices_can_be_keys():
    assert len({*DEVICE_TYPES.values(), device_type("A10")}) == len(DEVICE_TYPES)


@pytest.mark.parametrize(
    ("name", "bandwidth_gb"),
    [
        ("NVLink2", 150),
        ("NVLink5", 900),
        ("PCIe3", 15.75),
        ("PCIe4", 31.5),
        ("PCIe5", 63),
        ("InfiniBand-100G", 12.5),
        ("InfiniBand-400G", 50),
        ("InfiniBand-8x200G", 200),  # llm-analysis: GB/s of a DGX A100
        ("InfiniBand-8x400G", 400),  # the same of a DGX H100
        ("InfiniBand-4x100G", 50),
        ("RoCE-8x200G", 200),
        ("Ethernet-10G", 1.25),
        ("Ethernet-100G", 12.5),
    ],
)
def test_links(name, bandwidth_gb):
    link = link_type(name)
    assert link.name == name
    assert link.bandwidth == pytest.approx(bandwidth_gb * 1e9, rel=0.001)
    assert 1e-7 < link.latency_s < 1e-4
    assert link.source


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVLink9",
        "Infiniband-200G",
        "InfiniBand-200",
        "InfiniBand-0x200G",
        "InfiniBand-17x200G",
        "InfiniBand-201G",
        "Ethernet--100G",
        "Ethernet-100Gb",
        "InfiniBand-8x200G ",
    ],
)
def test_unknown_links_are_refused(name):
    with pytest.raises(ConfigError) as caught:
        link_type(name)
    assert repr(name) in caught.value.wrong
    assert "InfiniBand-8x200G" in caught.value.right
    assert "bandwidth_gbytes_s" in caught.value.do


def test_an_unknown_link_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'NVLink3'"):
        link_type("NVlink3")


def test_own_devices_reach_each_other_over_the_host():
    own = DeviceType("mine", GIB, 9e11, {"float32": 4e13}, 12e9, None, "a test")
    assert usual_link(own).bandwidth == 12e9
    assert usual_link(own).name == "host"
