"""The shape of a role's model, from whatever the config says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from flexrlhf.config.paths import HUB, STAGE, why_absent
from flexrlhf.core.errors import ConfigError
from flexrlhf.planning.costs.gguf_shape import shape_of_gguf
from flexrlhf.planning.costs.hugging_face_config import shape_of_architecture, shape_of_config_file
from flexrlhf.planning.costs.shape import ModelShape
from flexrlhf.planning.costs.shape_catalogue import shape_named

_CONFIG_FILE: Final = "config.json"
_GGUF_SUFFIX: Final = ".gguf"


def model_shape(text: str) -> ModelShape:
    """Returns the shape that `shape: NAME|config.json` means.

    Args:
        text: the name of a known model, or the path of a config.json.

    Raises:
        ConfigError: no model has that name; the file is missing, broken, or of another kind of
            model.
    """
    if text.endswith(".json"):
        return shape_of_config_file(Path(text).expanduser())
    if (Path(text).expanduser() / _CONFIG_FILE).is_file():
        raise ConfigError(
            f"{text!r} is a folder.",
            "A shape is the name of a known model or the path of a config.json.",
            f"Write {text}/{_CONFIG_FILE}.",
        )
    return shape_named(text)


def shape_of_role(
    role: str,
    *,
    path: str | None = None,
    shape: str | None = None,
    architecture: Mapping[str, Any] | None = None,
) -> ModelShape:
    """Returns the shape of a role's model; exactly one of the three says where it comes from.

    Args:
        role: of the config, for errors.
        path: a local model folder or GGUF file. A model of the hub is not here yet, and what
            `stage:` means the caller knows: the shape of that stage's role.
        shape: name of a known model, or a config.json.
        architecture: of `init: random`, the keys of a config.json.

    Raises:
        ConfigError: nothing usable is there, with the config's key before the reason.
    """
    key = f"model.{role}"
    given = [source for source in (path, shape, architecture) if source is not None]
    if len(given) != 1:
        raise ConfigError(
            f"{key} has {len(given)} of path, shape and architecture.",
            "Exactly one of them says what the model is.",
            "Give one of them.",
        )
    if shape is not None:
        return _naming(f"{key}.shape", lambda: model_shape(shape))
    if path is not None:
        return _naming(f"{key}.path", lambda: _shape_of_path(path))
    return _naming(f"{key}.architecture", lambda: shape_of_architecture(architecture or {}, role))


def _naming(key: str, read: Callable[[], ModelShape]) -> ModelShape:
    """Puts the config's key before whatever goes wrong."""
    try:
        return read()
    except ConfigError as error:
        raise ConfigError(f"{key}: {error.wrong}", error.right, error.do) from error


def _shape_of_path(path: str) -> ModelShape:
    if path.startswith((HUB, STAGE)):
        raise ConfigError(
            f"{path} is not on this machine.",
            "A plan needs the model's sizes: a local folder, a GGUF file, or a shape.",
            "Give shape: NAME or the path of its config.json instead of path.",
        )
    absent = why_absent(path)
    if absent:
        raise ConfigError(
            f"{path} {absent}.",
            "It is a model folder with config.json, or a GGUF file.",
            "Correct the path, or give shape: NAME to plan without the model.",
        )
    place = Path(path).expanduser()
    if place.suffix == _GGUF_SUFFIX and place.is_file():
        return shape_of_gguf(place)
    if not (place / _CONFIG_FILE).is_file():
        raise ConfigError(
            f"{path} is {'a folder without ' + _CONFIG_FILE if place.is_dir() else 'no folder'}.",
            f"It is a model folder with {_CONFIG_FILE}, or a GGUF file.",
            "Give the folder that Hugging Face's save_pretrained wrote, or shape: NAME.",
        )
    return shape_of_config_file(place / _CONFIG_FILE)
