"""Ray's token: who may give a cluster work, which is to run any code on its machines.

A cluster of our own gets a token that only this process and its children know. To join one, Ray
reads the token from RAY_AUTH_TOKEN, from the file that RAY_AUTH_TOKEN_PATH names, or from
~/.ray/auth_token; `ray get-auth-token` prints it on a machine that has it.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

MODE: Final = "RAY_AUTH_MODE"
TOKEN: Final = "RAY_AUTH_TOKEN"
TOKEN_PATH: Final = "RAY_AUTH_TOKEN_PATH"
_FILE: Final = Path(".ray", "auth_token")


def own_token(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables under which a new cluster takes orders from this process alone.

    A user who has switched tokens off or on keeps his choice.
    """
    if environment.get(MODE, "token").lower() != "token":
        return {}
    return {TOKEN: _token(), **_mode()}


def known_token(environment: Mapping[str, str], home: Path | None = None) -> dict[str, str]:
    """Returns the variables that show a cluster the token that the user has; nothing without one.

    Args:
        environment: variables of the user.
        home: folder of the user.
    """
    if MODE in environment or token_source(environment, home) is None:
        return {}
    return _mode()


def token_source(environment: Mapping[str, str], home: Path | None = None) -> str | None:
    """Returns where the user's token comes from; None where there is none."""
    if environment.get(TOKEN):
        return TOKEN
    if path := environment.get(TOKEN_PATH):
        return f"{path} ({TOKEN_PATH})"
    file = (home or Path.home()) / _FILE
    return str(file) if file.is_file() else None


@lru_cache
def _token() -> str:
    # One per process: Ray reads it once.
    return secrets.token_hex(32)


def _mode() -> dict[str, str]:
    # Ray reads the mode at its import; afterwards it finds out by itself, if the mode is not set.
    return {} if "ray" in sys.modules else {MODE: "token"}
