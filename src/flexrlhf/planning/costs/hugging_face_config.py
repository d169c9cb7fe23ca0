"""A model's shape from its config.json, without transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from flexrlhf.core.errors import ConfigError
from flexrlhf.core.model_families import PACKED_FAMILIES, unusual_feature
from flexrlhf.planning.costs.families.config_keys import ConfigKeys
from flexrlhf.planning.costs.families.defaults import DEFAULTS, SIZES
from flexrlhf.planning.costs.families.registry import FAMILIES
from flexrlhf.planning.costs.families.unknown import unknown_family
from flexrlhf.planning.costs.shape import ModelShape

_TEXT_PART: Final = "text_config"
_TEXT_SUFFIX: Final = "_text"
_OUTER_KEYS: Final = ("tie_word_embeddings", "architectures", "is_encoder_decoder")
"""What the whole says of its language model too."""


def shape_of_config(
    document: Mapping[str, Any], name: str, *, where: str | None = None
) -> ModelShape:
    """Returns the shape that a Hugging Face config describes.

    Families of `families.registry` are counted to the last parameter. Another family with the usual
    keys is taken for one like Llama. Of a model that also sees or hears, the language model counts.

    Args:
        document: what config.json holds.
        name: of the shape.
        where: what the config is called at the start of an error.

    Raises:
        ConfigError: keys are missing or wrong, or it is no language model.
    """
    keys, family = _language_part(document, where or f"The config of {name}")
    keys = keys.with_defaults(DEFAULTS.get(family, {}))
    read: Callable[[ConfigKeys, str], ModelShape] = FAMILIES.get(family, unknown_family)
    packs = family in PACKED_FAMILIES and unusual_feature(keys.values) is None
    return replace(read(keys, name), family=family, packs=packs)


def shape_of_architecture(
    architecture: Mapping[str, Any], name: str, *, where: str | None = None
) -> ModelShape:
    """Returns the shape of a model that `init: random` makes, in which any key may be left out.

    Args:
        architecture: keys of a config.json, `model_type` among them.
        name: of the shape.
        where: what the architecture is called at the start of an error.

    Raises:
        ConfigError: as `shape_of_config`.
    """
    where = where or f"The architecture of {name}"
    keys, family = _language_part(architecture, where)
    return shape_of_config(keys.with_defaults(SIZES.get(family, {})).values, name, where=where)


def shape_of_config_file(file: Path) -> ModelShape:
    """Returns the shape that a config.json describes, named after its folder.

    Raises:
        ConfigError: the file cannot be read, is no JSON object, or as `shape_of_config`.
    """
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return shape_of_config(_read_object(file), name or file.stem, where=str(file))


def _language_part(document: Mapping[str, Any], where: str) -> tuple[ConfigKeys, str]:
    """Returns the keys of the language model and its family."""
    family = document.get("model_type")
    if family is not None and not isinstance(family, str):
        raise ConfigError(
            f"{where} has model_type = {family!r}.",
            "It names a Hugging Face family, like llama or qwen2.",
            "Correct the value.",
        )
    family = family or ""
    inner = document.get(_TEXT_PART)
    if isinstance(inner, Mapping):
        inner = cast("Mapping[str, Any]", inner)
        outer = {key: document[key] for key in _OUTER_KEYS if key in document}
        own = {"model_type": f"{family}{_TEXT_SUFFIX}", **outer, **inner}
        return _language_part(own, where)
    if f"{family}{_TEXT_SUFFIX}" in FAMILIES:
        family = f"{family}{_TEXT_SUFFIX}"
    return ConfigKeys(document, where), family


def _read_object(file: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror or error}.",
            "It is the config.json of a model.",
            "Correct the path.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} is no JSON: {error}.",
            "It is the config.json of a model, as Hugging Face's save_pretrained writes it.",
            "Correct the file, or copy it again.",
        ) from error
    if not isinstance(document, dict):
        raise ConfigError(
            f"{file} holds no JSON object, but {type(document).__name__}.",
            "It is the config.json of a model: keys and values in braces.",
            "Give another file.",
        )
    return cast("Mapping[str, Any]", document)
