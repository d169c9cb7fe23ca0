"""Which replica of unlike workers gets how much."""

from __future__ import annotations

import torch

from flexrlhf.core.algorithm_specs import algorithm_spec
from flexrlhf.learning.data.experience import Prompt, Sample
from flexrlhf.learning.transport.buffer import ExperienceBuffer
from flexrlhf.planning.placement.plan import Plan, RolePlacement
from flexrlhf.runtime.devices.device_map import DeviceMap
from flexrlhf.runtime.devices.exchange import ExperienceExchange

PLACEMENT = {
    "actor": RolePlacement((0, 1, 2, 3), tensor_parallel=2, data_parallel=2),
    "critic": RolePlacement((0, 1, 2, 3), pipeline_parallel=2, data_parallel=2),
    "reference": RolePlacement((0, 1, 2, 3), data_parallel=4),
    "reward": RolePlacement((3, 4), data_parallel=2),
    "shadow_actor": RolePlacement((4,)),
}
SPEEDS = (1.0, 0.5, 1.0, 1.0, 0.25)


def device_map(speeds: tuple[float, ...] = SPEEDS) -> DeviceMap:
    plan = Plan(1, "disaggregated", feasible=True, why="", placement=PLACEMENT)
    return DeviceMap(plan, algorithm_spec("ppo"), speeds)


def sample(sample_id: int, length: int) -> Sample:
    tokens = torch.ones(length, dtype=torch.int64)
    mask = torch.arange(length) > 0
    prompt = Prompt(0, (1,), "", None, {})
    return Sample(sample_id, prompt, tokens, 1, mask, "", finished=True, weight_version=0)


def test_a_replica_is_as_fast_as_its_slowest_worker():
    assert device_map().replica_speeds("actor") == (0.5, 1.0)
    assert device_map().replica_speeds("critic") == (1.0, 0.5)  # workers 0 and 2, 1 and 3
    assert device_map().replica_speeds("reference") == (1.0, 0.5, 1.0, 1.0)
    assert device_map().engine_speeds == (0.25,)


def test_without_speeds_all_are_equal():
    assert device_map(()).replica_speeds("actor") == ()
    assert device_map(()).engine_speeds == ()


def test_the_slow_worker_scores_a_fifth():
    exchange = ExperienceExchange(
        device_map(),
        4,
        ask=_nobody,
        prompt_of=_nobody,
        buffer=ExperienceBuffer(1, 20),
        held_out=ExperienceBuffer(1, 1),
    )
    exchange.keep_generated(0, 0, [sample(number, 6) for number in range(20)])
    assert len(exchange.share(0, 0, "reward")) == 4


def _nobody(*_):
    raise AssertionError("everything is here")
