"""Section `model`: where each role's weights and tokenizer come from."""

from __future__ import annotations

from typing import Literal

from flexrlhf.config.section import Count, Options, Section, Text

WeightType = Literal["float32", "bfloat16", "float64"]


class Lora(Section):
    """Adapters that are trained in place of the weights, on every linear layer of the blocks."""

    rank: Count
    """Width of an adapter."""


class RoleModel(Section):
    """One role's model: exactly one of `path`, `shape` and `init` says where it comes from."""

    path: Text | None = None
    """Model folder, GGUF file, `hub:ORG/NAME`, or `stage:NAME/ROLE` of an earlier stage."""
    shape: Text | None = None
    """Name of a known model, or a config.json: enough for planning, not for training."""
    init: Literal["random"] | None = None
    """`random` makes fresh weights of the given `architecture`, drawn from `run.seed`."""
    architecture: Options | None = None
    """With `init: random`: the keys of a Hugging Face config.json, `model_type` among them."""
    tokenizer: Text | None = None
    """Folder of the tokenizer or `hub:ORG/NAME`; null: the model's own, else the trained role's."""
    dtype: WeightType = "float32"
    """Number format in which the weights are held."""
    lora: Lora | None = None
    """Train adapters only; null trains all weights."""


class Models(Section):
    """The model of each role."""

    actor: RoleModel | None = None
    """The policy that is trained; every algorithm but `reward_model` needs it."""
    critic: RoleModel | None = None
    """The value model; null starts it from the reward model if there is one, else the actor."""
    reference: RoleModel | None = None
    """The policy that KL is measured against; null is the initial actor."""
    reward: RoleModel | None = None
    """The model that scores answers; null leaves scoring to `reward.functions`."""
