"""Placements that the paper's are measured against: each with its best degrees at the same work.

Nothing but the placement differs: models, adapters, software, batch and lengths are those of the
paper's case. What is trained is sharded by ZeRO throughout, as in DeepSpeed-Chat, verl and
OpenRLHF, so that no speed-up is one of pipelines or of tensor parallelism in training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from flexrlhf.core.names import GenerationMode, Role
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.arranging import arrangements
from flexrlhf.planning.placement.choices import Choices
from flexrlhf.planning.search.request import PlanRequest
from flexrlhf.planning.search.search import Found, Search

Degrees = Mapping[str, Any]
_SHARDED: Final[Degrees] = {"tensor_parallel": 1, "pipeline_parallel": 1}


@dataclass(frozen=True, slots=True)
class Way:
    """One placement and what it leaves to the planner."""

    name: str
    strategy: str
    words: str
    generation: GenerationMode | None = None
    """None leaves it to the planner."""
    trained: Callable[[PlanRequest], Degrees] = lambda _: _SHARDED
    """Degrees of what is trained."""
    frozen: Callable[[PlanRequest], Degrees] = lambda _: {}
    """Degrees of the frozen models."""
    max_staleness: int = 0


def _zero_3(_: PlanRequest) -> Degrees:
    """ZeRO-3 over the role's own devices."""
    return {**_SHARDED, "zero_stage": 3}


def _everywhere(request: PlanRequest) -> Degrees:
    """ZeRO-3 over all devices, so that gathers cross nodes."""
    return {**_SHARDED, "zero_stage": 3, "shard_devices": request.cluster.num_devices}


def _in_nodes(request: PlanRequest) -> Degrees:
    """ZeRO-3 inside each node."""
    size = len(request.cluster.nodes[0].devices)
    return {**_SHARDED, "zero_stage": 3, "shard_devices": size}


PER_TOKEN: Final = Way(
    "gather per token",
    "deepspeed_chat",
    "ZeRO-3 over all devices; every token gathers all weights (DeepSpeed-Chat, no hybrid engine)",
    "per_token",
    _everywhere,
    _everywhere,
)
GATHER_ONCE: Final = Way(
    "gather once",
    "deepspeed_chat",
    "the same, but weights are gathered once before a round of generation",
    "gathered",
    _everywhere,
    _everywhere,
)
TENSOR_PARALLEL: Final = Way(
    "tensor parallel in the node",
    "tp_generation",
    "the same, but weights are resharded by tensor parallelism inside the node to generate",
    None,
    _everywhere,
    _everywhere,
)
LOCAL_PER_TOKEN: Final = Way(
    "sharded in the node, per token",
    "hybrid_sharded",
    "ZeRO-3 inside each node; every token gathers all weights, but inside the node",
    "per_token",
    _in_nodes,
    _in_nodes,
)
LOCAL: Final = Way(
    "sharded in the node",
    "hybrid_sharded",
    "ZeRO-3 inside each node; generation as is best",
)
VERL: Final = Way("verl-like", "verl", "all roles everywhere, generation resharded as is best")
OPENRLHF: Final = Way(
    "OpenRLHF-like", "openrlhf", "the best of OpenRLHF's layouts: roles in pairs, apart or together"
)
INTERLEAVED_1: Final = Way(
    "Interleaved 1", "interleaved_1", "reference beside reward; generation as is best"
)
INTERLEAVED_1_ZERO_3: Final = Way(
    "Interleaved 1, ZeRO-3",
    "interleaved_1",
    "the same with ZeRO-3 for every role and a gather per token",
    "per_token",
    _everywhere,
    _zero_3,
)
INTERLEAVED_2: Final = Way(
    "Interleaved 2",
    "interleaved_2",
    "the actor inside one node and gathered per token there, other roles on the other nodes",
    "per_token",
    _zero_3,
)
INTERLEAVED_2_BEST: Final = Way(
    "Interleaved 2, generation as is best",
    "interleaved_2",
    "the same, generation as is best",
)
DISAGGREGATED: Final = Way(
    "disaggregated",
    "disaggregated",
    "the best pools; training waits for all samples, as in the authors' code",
)
OVERLAPPED: Final = Way(
    "disaggregated, one round stale",
    "disaggregated",
    "the same, but generation uses the weights of the round before and overlaps training",
    max_staleness=1,
)
COLOCATED: Final = Way("colocated", "colocated", "all roles everywhere; generation as is best")
REWARD_ON_ONE: Final = Way(
    "reward on one device",
    "reward_on_one",
    "as colocated, but one device scores all rewards (trlX)",
)


def best_plan(request: PlanRequest, way: Way) -> Found | None:
    """Returns the fastest plan of a way; None where the strategy has none.

    What it found may not fit: its plan has no prediction then.
    """
    request = replace(request, max_staleness=way.max_staleness)
    spec = request.spec
    degrees: dict[Role, Degrees] = dict.fromkeys(spec.trained, way.trained(request))
    if frozen := way.frozen(request):
        degrees |= dict.fromkeys((role for role in spec.models if role in spec.frozen), frozen)
    found = arrangements(way.strategy, spec, request.cluster, Choices(degrees=degrees))
    if isinstance(found, Refusal):
        return None
    wanted = [a for a in (_generating(a, way) for a in found) if a is not None]
    return Search(request).best_of(wanted)


def _generating(arrangement: Arrangement, way: Way) -> Arrangement | None:
    """The arrangement with the way's generation, where it leaves that open."""
    if way.generation is None or arrangement.generation == way.generation:
        return arrangement
    if arrangement.generation is None:
        return replace(arrangement, generation=way.generation)
    return None
