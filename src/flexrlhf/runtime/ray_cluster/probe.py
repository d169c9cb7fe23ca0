"""Asks whether a Ray cluster is at an address and takes orders from this user, in bounded time.

A process of its own asks: Ray tries for minutes where something else listens, writes a line for
every time that a token is refused, and ends the process that has none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final, Literal

from flexrlhf.runtime.ray_cluster.authentication import MODE, token_source

Answer = Literal["is ours", "refuses", "is silent"]

_ASK: Final = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
_LONGEST_S: Final = 20.0
"""An answer takes 0.02 s, Ray's import 1 s on an idle machine."""
_REFUSAL: Final = "InvalidAuthToken"


def probe(head: str) -> Answer:
    """Returns what a cluster says to this user.

    Args:
        head: HOST:PORT at which somebody listens.
    """
    environment = dict(os.environ)
    has_token = token_source(environment) is not None
    if has_token:
        environment.setdefault(MODE, "token")
    elif environment.get(MODE, "").lower() == "token":
        return "refuses"  # Ray would show no token in that mode but abort
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK, head],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "is silent"
    if asked.returncode == 0:
        return "is ours"
    return "refuses" if _REFUSAL in asked.stderr else "is silent"
