"""The modules of a run's roles, on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from flexrlhf.config.resolution import role_origin
from flexrlhf.config.schema import RunConfig
from flexrlhf.core.algorithm_specs import AlgorithmSpec
from flexrlhf.core.errors import ConfigError
from flexrlhf.core.names import ROLES, Role
from flexrlhf.learning.models.gradient_checkpointing import enable_gradient_checkpointing
from flexrlhf.learning.models.heads import pretrained
from flexrlhf.learning.models.loading import (
    load_policy,
    load_scorer,
    load_shared_actor_critic,
    load_tokenizer,
)
from flexrlhf.learning.models.parallelise import ParallelModel, parallelise
from flexrlhf.learning.models.role_mesh import RoleMesh
from flexrlhf.learning.models.sizes import max_positions
from flexrlhf.learning.models.skeleton import (
    Skeleton,
    policy_skeleton,
    scorer_skeleton,
    shared_skeleton,
)
from flexrlhf.learning.models.soundness import check_part, check_soundness
from flexrlhf.learning.models.source import ModelSource
from flexrlhf.learning.models.vocabulary import check_vocabularies, check_vocabulary_fits

_Kind = Literal["policy", "scorer", "shared"]
_Load = Callable[[ModelSource], nn.Module]
_Make = Callable[[ModelSource], Skeleton | None]
_KINDS: Final[Mapping[_Kind, tuple[_Load, _Make]]] = {
    "policy": (load_policy, policy_skeleton),
    "scorer": (load_scorer, scorer_skeleton),
    "shared": (load_shared_actor_critic, shared_skeleton),
}
"""How a kind of model is loaded as a whole, and how without its weights."""


@dataclass(frozen=True, slots=True)
class RoleModels:
    """Every role's module and the tokenizer that they share."""

    models: Mapping[Role, nn.Module]
    tokenizer: PreTrainedTokenizerBase


class RoleLoader:
    """Loads the models of a run's roles, once their tokenizers are known to agree.

    Args:
        config: a resolved run, without stages.
        spec: its algorithm.
        longest: tokens of the longest sequence that they will read.

    Raises:
        ConfigError: a tokenizer does not load, or has another vocabulary than the others.
    """

    def __init__(self, config: RunConfig, spec: AlgorithmSpec, *, longest: int) -> None:
        self._config = config
        self._spec = spec
        self._longest = longest
        self._sources: dict[Role, ModelSource] = {
            role: source for role in spec.roles if (source := model_source(role, config))
        }
        self._tokenizers = _tokenizers(self._sources, spec.trained[0])
        check_vocabularies(
            {_given_as(role, config): self._tokenizers[role] for role in self._sources}
        )

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that all roles share."""
        return self._tokenizers[self._spec.trained[0]]

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles that have a model; a reward may be functions alone."""
        return tuple(self._sources)

    def load(self, role: Role, device: torch.device, *, trains: bool) -> nn.Module:
        """Returns the first weights of a role, the same for every call.

        Args:
            role: one of `roles`.
            device: where the model goes.
            trains: whether it will have gradients.

        Raises:
            ConfigError: the model does not load or compute, reads too few tokens, or does not fit
                its tokenizer.
        """
        load, _ = _KINDS[_kind(role, self._spec)]
        model = cast("nn.Module", load(self._sources[role])).to(device)
        check_soundness(role, model)
        self._prepare(role, model, trains=trains)
        return model

    def load_part(self, role: Role, mesh: RoleMesh, *, trains: bool) -> ParallelModel:
        """Returns what this process holds of a role's first weights; all of the role call it.

        Nothing but that part takes memory, if the model can surely be made so. The weights are
        those that `load` gives.

        Args:
            role: one of `roles`.
            mesh: its processes.
            trains: whether it will have gradients.

        Raises:
            ConfigError: as `load`, or the model cannot be split so.
        """
        _, make = _KINDS[_kind(role, self._spec)]
        skeleton = make(self._sources[role])
        if skeleton is None:
            return parallelise(self.load(role, mesh.device, trains=trains), mesh, trains=trains)
        self._prepare(role, skeleton.model, trains=trains)
        model = parallelise(skeleton.model, mesh, trains=trains, values=skeleton.values)
        check_part(role, model)
        return model

    def _prepare(self, role: Role, model: nn.Module, *, trains: bool) -> None:
        """Checks that a model fits the run, and makes it ready for its use."""
        check_vocabulary_fits(role, model, self._tokenizers[role])
        _check_length(role, model, self._longest)
        _name_end_token(model, self._tokenizers[role])
        if not trains:
            model.requires_grad_(False)  # noqa: FBT003 - torch's own signature
        elif self._config.training.gradient_checkpointing:
            enable_gradient_checkpointing(model)


def load_roles(
    config: RunConfig, spec: AlgorithmSpec, device: torch.device, *, longest: int
) -> RoleModels:
    """Loads the models of all roles and checks that they fit each other.

    Args:
        config: a resolved run, without stages.
        spec: its algorithm.
        device: where the models go.
        longest: tokens of the longest sequence that they will read.

    Raises:
        ConfigError: a model is missing, does not load or compute, reads too few tokens, or has
            another vocabulary than the others.
    """
    loader = RoleLoader(config, spec, longest=longest)
    models: dict[Role, nn.Module] = {
        role: loader.load(role, device, trains=role in spec.trained) for role in loader.roles
    }
    return RoleModels(models, loader.tokenizer)


def _given_as(role: Role, config: RunConfig) -> str:
    """Returns the role under which the config gives a role's model: what the user can change."""
    origin = role_origin(config, role)
    return origin.role if origin is not None else role


def _kind(role: Role, spec: AlgorithmSpec) -> _Kind:
    if role in ("critic", "reward"):
        return "scorer"
    return "shared" if spec.shares_trunk and role == "actor" else "policy"


def model_source(role: Role, config: RunConfig) -> ModelSource | None:
    """Returns where a role's model comes from; None for rewards that are functions alone."""
    origin = role_origin(config, role)
    if origin is None:
        return None
    return ModelSource(
        path=origin.model.path,
        architecture=origin.model.architecture,
        tokenizer=origin.model.tokenizer,
        dtype=origin.model.dtype,
        seed=config.run.seed * len(ROLES) + ROLES.index(origin.role),
    )


def _tokenizers(
    sources: Mapping[Role, ModelSource], main_role: Role
) -> dict[Role, PreTrainedTokenizerBase]:
    """Loads each role's tokenizer; a fresh model without one takes the main role's."""
    main = load_tokenizer(sources[main_role])
    return {
        role: main
        if source == sources[main_role] or (source.path is None and source.tokenizer is None)
        else load_tokenizer(source)
        for role, source in sources.items()
    }


def _name_end_token(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
    """Tells a fresh model its tokenizer's end token, so that others stop at it once it is saved."""
    inner = pretrained(model)
    if inner.config.eos_token_id is None:
        inner.config.eos_token_id = tokenizer.eos_token_id
        if inner.can_generate():
            inner.generation_config.eos_token_id = tokenizer.eos_token_id


def _check_length(role: Role, model: nn.Module, longest: int) -> None:
    limit = max_positions(model)
    if limit is not None and longest > limit:
        raise ConfigError(
            f"Sequences may have {longest} tokens, but model.{role} reads at most {limit}.",
            "data.max_prompt_tokens + rollout.max_new_tokens (data.max_tokens for supervised rows "
            "and pairs) must not exceed it.",
            "Lower these limits, or choose a model with more positions.",
        )
