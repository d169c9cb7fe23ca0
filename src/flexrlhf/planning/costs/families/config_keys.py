"""The keys of a config.json, read with their types checked, whatever a family calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flexrlhf.core.errors import ConfigError

_SPELLINGS: Final = {
    "n_embd": "hidden_size",
    "n_embed": "hidden_size",
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "n_head_kv": "num_key_value_heads",
    "n_inner": "intermediate_size",
    "ffn_dim": "intermediate_size",
    "ffn_hidden_size": "intermediate_size",
    "n_ctx": "max_position_embeddings",
    "n_positions": "max_position_embeddings",
    "num_local_experts": "num_experts",
    "n_routed_experts": "num_experts",
    "moe_shared_expert_intermediate_size": "shared_expert_intermediate_size",
    "layers_block_type": "layer_types",
}
"""Other names of a key. Source: `attribute_map` of transformers' configs, and older files."""

_SIZES: Final = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


class ConfigKeys:
    """A config's keys with one spelling.

    A null counts as given: a family's default does not replace it.

    Args:
        document: the config of the language model itself.
        where: what the config is called at the start of an error.
    """

    def __init__(self, document: Mapping[str, Any], where: str) -> None:
        respelt = {key: document[old] for old, key in _SPELLINGS.items() if old in document}
        self._values: dict[str, Any] = {**document, **respelt}
        self.where = where

    def with_defaults(self, defaults: Mapping[str, Any]) -> ConfigKeys:
        """Returns the keys with those of `defaults` added that are not given."""
        return ConfigKeys({**ConfigKeys(defaults, "")._values, **self._values}, self.where)

    def with_values(self, values: Mapping[str, Any]) -> ConfigKeys:
        """Returns the keys with those of `values` in place of what is given."""
        return ConfigKeys({**self._values, **values}, self.where)

    @property
    def values(self) -> Mapping[str, Any]:
        """The keys as they are spelt here."""
        return self._values

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def require_sizes(self) -> None:
        """Checks that the sizes are there that every language model has.

        Raises:
            ConfigError: names all that are missing.
        """
        missing = [key for key in _SIZES if key not in self]
        if missing:
            raise ConfigError(
                f"{self.where} lacks {', '.join(missing)}.",
                f"The config of a language model has {', '.join(_SIZES)}.",
                "Give the config.json of a causal language model, or the name of a known shape.",
            )

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Returns a whole number.

        Raises:
            ConfigError: it is missing and has no default, is of another type, or too small.
        """
        value = self._values.get(key)
        value = default if value is None else value
        if type(value) is not int or value < least:
            wrong = f"lacks {key}" if value is None else f"has {key} = {value!r}"
            raise ConfigError(
                f"{self.where} {wrong}.",
                f"It is a whole number of at least {least}.",
                "Add the key." if value is None else "Correct the value.",
            )
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Returns a truth value.

        Raises:
            ConfigError: it is of another type.
        """
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(
                f"{self.where} has {key} = {value!r}.", "It is true or false.", "Correct the value."
            )
        return value

    def word(self, key: str) -> str:
        """Returns a text, empty where there is none or something else."""
        value = self._values.get(key)
        return value if isinstance(value, str) else ""

    def words(self, key: str) -> tuple[str, ...]:
        """Returns a list of words, empty where there is none; of a text its letters.

        Raises:
            ConfigError: it is something else.
        """
        items: Any = self._items(key)
        if not all(isinstance(item, str) for item in items):
            raise self._no_list(key, "words")
        return items

    def indices(self, key: str) -> tuple[int, ...]:
        """Returns a list of whole numbers, empty where there is none.

        Raises:
            ConfigError: it is something else.
        """
        items: Any = self._items(key)
        if not all(type(item) is int for item in items):
            raise self._no_list(key, "whole numbers")
        return items

    def _items(self, key: str) -> tuple[Any, ...]:
        value = self._values.get(key)
        if value is None:
            return ()
        if not isinstance(value, (list, tuple, str)):
            raise self._no_list(key, "items")
        return tuple(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]

    def _no_list(self, key: str, kind: str) -> ConfigError:
        return ConfigError(
            f"{self.where} has {key} = {self._values[key]!r}.",
            f"It is a list of {kind}.",
            "Correct the value.",
        )
