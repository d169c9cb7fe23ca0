"""The config of the model that a source stands for, checked for what the model is to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexrlhf.core.errors import ConfigError
from flexrlhf.learning.models.architecture import config_from_architecture, config_of_folder
from flexrlhf.learning.models.folders import model_folder
from flexrlhf.learning.models.source import ModelSource

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """What is to be made."""

    config: PreTrainedConfig
    folder: Path | None
    """With the weights; None where they are drawn."""
    needs_head: bool = False
    """Whether a scorer's head is a fresh one."""


def policy_config(source: ModelSource) -> SourceConfig:
    """Returns the config of a causal language model.

    Raises:
        ConfigError: the source holds none.
    """
    if source.path is None:
        return SourceConfig(config_from_architecture(source.architecture or {}), None)
    folder = model_folder(source.path)
    config = config_of_folder(folder)
    if _is_classifier(config):
        raise ConfigError(
            f"{folder} holds a sequence classifier, which has no language-model head.",
            "actor and reference are causal language models.",
            "Give the folder of a causal language model.",
        )
    return SourceConfig(config, folder)


def scorer_config(source: ModelSource) -> SourceConfig:
    """Returns the config of a model with one label.

    Raises:
        ConfigError: the source holds none, or one with several labels.
    """
    if source.path is None:
        architecture = {**(source.architecture or {}), "num_labels": 1}
        return SourceConfig(config_from_architecture(architecture), None, needs_head=True)
    folder = model_folder(source.path)
    config = config_of_folder(folder)
    needs_head = not _is_classifier(config)
    if not needs_head and config.num_labels != 1:
        raise ConfigError(
            f"{folder} holds a classifier with {config.num_labels} labels.",
            "A reward model or critic gives one number: num_labels = 1.",
            "Give a reward model with one label, or the causal language model below it.",
        )
    config.num_labels = 1
    return SourceConfig(config, folder, needs_head)


def require_kind(auto_class: Any, config: PreTrainedConfig) -> None:
    """Checks that a family has the kind of model that one of transformers' auto classes makes.

    Raises:
        ConfigError: it has none.
    """
    if type(config) not in auto_class._model_mapping:
        kind = auto_class.__name__.removeprefix("AutoModelFor")
        raise ConfigError(
            f"model_type = {config.model_type!r} gives no {kind} model.",
            f"The family must have a {kind} class in transformers.",
            "Choose a family like llama, qwen2, qwen3 or gpt2.",
        )


def _is_classifier(config: PreTrainedConfig) -> bool:
    names = config.architectures or ()
    return any(name.endswith("ForSequenceClassification") for name in names)
