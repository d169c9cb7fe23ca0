"""One file per strategy, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.names import StrategyName
from flexrlhf.planning.cluster.cluster import Cluster
from flexrlhf.planning.placement.arrangement import Arrangement, Refusal
from flexrlhf.planning.placement.strategies.colocated import colocated
from flexrlhf.planning.placement.strategies.deepspeed_chat import deepspeed_chat
from flexrlhf.planning.placement.strategies.disaggregated import disaggregated
from flexrlhf.planning.placement.strategies.hybrid_sharded import hybrid_sharded
from flexrlhf.planning.placement.strategies.interleaved_1 import interleaved_1
from flexrlhf.planning.placement.strategies.interleaved_2 import interleaved_2
from flexrlhf.planning.placement.strategies.openrlhf import openrlhf
from flexrlhf.planning.placement.strategies.real import real
from flexrlhf.planning.placement.strategies.reward_on_one import reward_on_one
from flexrlhf.planning.placement.strategies.tp_generation import tp_generation
from flexrlhf.planning.placement.strategies.trlx import trlx
from flexrlhf.planning.placement.strategies.verl import verl
from flexrlhf.planning.placement.strategies.zero3_generation import zero3_generation

Rule = Callable[[AlgorithmSpec, Cluster], list[Arrangement] | Refusal]

STRATEGY_RULES: Final[Mapping[StrategyName, Rule]] = {
    "colocated": colocated,
    "interleaved_1": interleaved_1,
    "interleaved_2": interleaved_2,
    "disaggregated": disaggregated,
    "reward_on_one": reward_on_one,
    "zero3_generation": zero3_generation,
    "hybrid_sharded": hybrid_sharded,
    "tp_generation": tp_generation,
    "deepspeed_chat": deepspeed_chat,
    "trlx": trlx,
    "openrlhf": openrlhf,
    "verl": verl,
    "real": real,
}
"""Every strategy that needs no decision of the user; `custom` is made of those."""
