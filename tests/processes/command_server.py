"""Runs commands in its own surroundings, one after another, for a test that is elsewhere.

Each line of standard input is a JSON object with `command`, `limit_s`, and `variables` that are
set, or unset where they are null; a line of JSON with `status`, `said` and `seconds` answers it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main() -> None:
    """Serves until its input ends."""
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


def run(command: list[str], limit_s: float, variables: dict[str, str | None]) -> dict[str, object]:
    """Returns what became of a command; its status is -1 if it was ended at its limit."""
    environment = {**os.environ, **variables}
    begun_s = time.monotonic()
    process = subprocess.Popen(
        command,
        env={name: value for name, value in environment.items() if value is not None},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
        status = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        said, status = process.communicate()[0], -1
    return {"status": status, "said": said, "seconds": time.monotonic() - begun_s}


if __name__ == "__main__":
    main()
