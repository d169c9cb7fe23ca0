"""From what a user writes as a model's path to a local Hugging Face folder that is safe to load."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from flexrlhf.core.errors import ConfigError, nearest
from flexrlhf.core.sources import HUB
from flexrlhf.learning.models.gguf_conversion import converted_folder

_HUB_FILES: Final = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
_SAFE_WEIGHTS: Final = ("model.safetensors", "model.safetensors.index.json")
_PICKLED_WEIGHTS: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def model_folder(path: str) -> Path:
    """Returns the folder with the model of `path`: config.json and safetensors weights.

    Args:
        path: a folder; a `.gguf` file, which is converted once; or `hub:NAME`, the only form that
            may download.

    Raises:
        ConfigError: nothing usable is there; says what is.
    """
    folder = local_folder(path)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} has no config.json; it holds {_contents(folder)}.",
            "A model folder holds config.json and model.safetensors.",
            "Give the folder that Hugging Face's save_pretrained wrote, or a .gguf file itself.",
        )
    if not any((folder / name).is_file() for name in _SAFE_WEIGHTS):
        pickled = sorted(file.name for kind in _PICKLED_WEIGHTS for file in folder.glob(kind))
        raise ConfigError(
            f"{folder} has no {' or '.join(_SAFE_WEIGHTS)}; it holds {_contents(folder)}.",
            "Weights are read from safetensors only, since a pickle can run any code."
            if pickled
            else "A model folder holds config.json and model.safetensors.",
            "Convert the weights to safetensors, for example by save_pretrained of transformers.",
        )
    return folder


def local_folder(path: str) -> Path:
    """Returns an existing local folder for `path`, downloaded or converted when it asks for that.

    Raises:
        ConfigError: there is no such folder, or it cannot be downloaded or converted.
    """
    if path.startswith(HUB):
        return _downloaded_folder(path.removeprefix(HUB))
    place = Path(path).expanduser()
    if place.is_dir():
        return place
    if place.suffix == ".gguf" and place.is_file():
        return converted_folder(place)
    raise ConfigError(
        f"There is no model at {path}: {_what_is_there(place)}",
        f"A path is a folder or a .gguf file; {HUB}NAME downloads from Hugging Face.",
        _correction(place),
    )


def _what_is_there(place: Path) -> str:
    if place.is_file():
        return "it is a file, but not a .gguf file."
    parent = next(parent for parent in place.absolute().parents if parent.is_dir())
    return f"{parent} holds {_contents(parent)}."


def _correction(place: Path) -> str:
    parent = place.absolute().parent
    if place.is_file():
        return f"Give the folder, {parent}."
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    return nearest(place.name, names) or "Correct the path."


def _contents(folder: Path, limit: int = 12) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(names[:limit]) or "nothing"
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def _downloaded_folder(name: str) -> Path:
    """Downloads into the cache of Hugging Face; pickled weights and code are left out."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except (OSError, HFValidationError) as error:
        raise ConfigError(
            f"{HUB}{name} could not be downloaded: {error}",
            "NAME is a model of huggingface.co that this machine may read, like org/model.",
            "Check the name and the network, or give a local folder.",
        ) from error
