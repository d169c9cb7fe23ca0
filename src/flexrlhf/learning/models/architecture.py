"""Hugging Face configs, checked and prepared so that a forward pass is deterministic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flexrlhf.core.errors import ConfigError, nearest
from flexrlhf.learning.models.foreign_errors import complaining

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_NOISE_WORDS: Final = ("drop", "jitter")
"""Parts of the keys that make training random: attn_pdrop, layerdrop, router_jitter_noise."""
_OLDER_KEYS: Final = frozenset({"rope_theta", "rope_scaling", "num_labels", "torch_dtype"})
"""Keys that transformers still reads and turns into newer ones."""


def config_from_architecture(architecture: Mapping[str, Any]) -> PreTrainedConfig:
    """Makes the config that a user wrote down as a mapping.

    Raises:
        ConfigError: `model_type` is missing or unknown, a key is unknown, or a value does not fit.
    """
    from transformers import CONFIG_MAPPING

    keys = dict(architecture)
    model_type = keys.pop("model_type", None)
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise ConfigError(
            f"model_type = {model_type!r} of the architecture is unknown.",
            "It names a Hugging Face family: llama, qwen2, qwen3, gpt2.",
            nearest(str(model_type), CONFIG_MAPPING) or "Choose one of these.",
        )
    config_class = CONFIG_MAPPING[model_type]
    _refuse_unknown_keys(keys, config_class, model_type)

    def complaint(said: str) -> ConfigError:
        return ConfigError(
            f"The architecture {dict(architecture)} is not valid: {said}",
            f"The values must suit {config_class.__name__} of transformers.",
            "Correct the value.",
        )

    with complaining(complaint):
        config = config_class(**keys)
    _forget_unnamed_special_tokens(config, architecture)
    return without_noise(config)


def config_of_folder(folder: Path) -> PreTrainedConfig:
    """Reads the config of a model folder.

    Raises:
        ConfigError: the config cannot be read, or needs code of the folder.
    """
    from transformers import AutoConfig

    def complaint(said: str) -> ConfigError:
        return ConfigError(
            f"The config.json of {folder} cannot be used: {said}",
            "It must name a model family of transformers; code inside a folder is never run.",
            "Use a model of a known family, or convert it.",
        )

    with complaining(complaint):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return without_noise(config)


def without_noise(config: PreTrainedConfig) -> PreTrainedConfig:
    """Sets every dropout and jitter to zero, in place.

    A ratio of two log-probs of one policy must be 1 when nothing was trained in between, in
    training mode too. A folder saved later says 0 as well: that is how it was trained.
    """
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        for key, value in part.to_dict().items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number and any(word in key for word in _NOISE_WORDS):
                setattr(part, key, 0.0)
    return config


def _refuse_unknown_keys(keys: Mapping[str, Any], config_class: Any, model_type: str) -> None:
    """Transformers would keep an unknown key as an attribute that nothing reads."""
    known = {*config_class().to_dict(), *config_class.attribute_map, *_OLDER_KEYS}
    for key in keys:
        if key not in known:
            raise ConfigError(
                f"The architecture has the key {key!r}, which {model_type} does not know.",
                f"Keys are those of {config_class.__name__} of transformers.",
                nearest(key, known) or "Remove the key.",
            )


def _forget_unnamed_special_tokens(
    config: PreTrainedConfig, architecture: Mapping[str, Any]
) -> None:
    """The family's default ids of special tokens mean other tokens in another vocabulary."""
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if key not in architecture:
            setattr(config, key, None)
