"""The engines by name, and which one a model gets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from torch import nn

from flexrlhf.core.names import RolloutWeights
from flexrlhf.core.plugins import load_plugin
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.parallelise import ParallelModel
from flexrlhf.learning.rollout.protocol import RolloutEngine
from flexrlhf.learning.rollout.speculation.settings import Speculation

_CLASSES: Final[Mapping[str, str]] = {
    "native": "flexrlhf.learning.rollout.native:NativeEngine",
    "transformers": "flexrlhf.learning.rollout.transformers_engine:TransformersEngine",
}

_log = logging.getLogger(__name__)


def build_engine(
    name: str,
    model: nn.Module | ParallelModel,
    *,
    max_sequences: int = 256,
    shares_weights: bool = True,
    weight_version: int = 0,
    has_weights: bool = True,
    gathers_per_token: bool = False,
    packs_weights: bool = True,
    captures_steps: bool = False,
    weights: RolloutWeights = "same",
    speculation: Speculation | None = None,
    kept_prefix_tokens: int = 0,
) -> RolloutEngine:
    """Returns engine `name` over `model`.

    A model that the native engine does not run gets the transformers engine, with a message.

    Args:
        name: one of `core.names.BUILT_ENGINES`.
        model: a Hugging Face causal language model, read in place, or a part of a split one.
        max_sequences: answers generated at one time.
        shares_weights: the trainer holds the same module.
        weight_version: of the model's present weights.
        has_weights: False: a version is installed before anything is generated.
        gathers_per_token: weights that lie in several replicas are gathered layer by layer in every
            pass, instead of once for each call of `generate`.
        packs_weights: the engine may copy weights, while it generates, to read them faster.
        captures_steps: the engine may capture decode steps on a GPU, and repeat them.
        weights: what it multiplies by.
        speculation: several tokens of an answer are tried at a time; None: one.
        kept_prefix_tokens: whose keys and values are kept for prompts that begin alike.

    Raises:
        ConfigError: the name is unknown, no engine runs the model, or the one that does is not
            able to speculate, to multiply so or to keep prefixes.
    """
    parallel = model if isinstance(model, ParallelModel) else ParallelModel(model)
    per_token = gathers_per_token and parallel.needs_lockstep
    engine_class = load_plugin("rollout.engine", _CLASSES, name)
    reason = engine_class.unsupported_reason(
        pretrained(parallel.module), gathers_per_token=per_token
    )
    if reason is not None and name == "native":
        _log.warning("rollout.engine native: %s; the transformers engine takes over.", reason)
        engine_class = load_plugin("rollout.engine", _CLASSES, "transformers")
    return engine_class(
        parallel,
        max_sequences=max_sequences,
        shares_weights=shares_weights,
        weight_version=weight_version,
        has_weights=has_weights,
        gathers_per_token=per_token,
        packs_weights=packs_weights,
        captures_steps=captures_steps,
        weights=weights,
        speculation=speculation,
        kept_prefix_tokens=kept_prefix_tokens,
    )
