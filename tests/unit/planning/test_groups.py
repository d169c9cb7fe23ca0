from __future__ import annotations

from flexrlhf.planning.workflow.groups import DeviceGroup, device_groups


def test_roles_on_the_same_devices_form_one_group(place):
    plan = place(reward=[0], reference=[0], critic=[0], actor=[0])
    assert device_groups(plan) == (
        DeviceGroup("main", (0,), ("actor", "critic", "reference", "reward")),
    )


def test_pools(two_pools, three_pools):
    assert [(group.name, group.devices) for group in device_groups(two_pools)] == [
        ("train", (0, 1)),
        ("generate", (2, 3)),
    ]
    assert [(group.name, group.roles) for group in device_groups(three_pools)] == [
        ("train", ("actor", "critic")),
        ("score", ("reference", "reward", "shadow_critic")),
        ("generate", ("shadow_actor",)),
    ]


def test_groups_that_are_no_pools_are_named_after_their_roles(interleaved):
    assert [(group.name, group.devices) for group in device_groups(interleaved)] == [
        ("actor+critic", (0, 1)),
        ("reference", (0,)),
        ("reward", (1,)),
    ]


def test_two_pools_of_one_kind_are_named_after_their_roles(place):
    plan = place(actor=[0], critic=[1], reference=[2], reward=[3], shadow_actor=[4])
    names = [group.name for group in device_groups(plan)]
    assert names == ["actor", "critic", "reference", "reward", "generate"]
