"""What the commands of a release print, and how they run others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path


class Missing(Exception):
    """Something that a step needs is not here; the others go on without it."""


def say(line: str, end: str = "\n") -> None:
    print(line, end=end, flush=True)


def run(
    command: Sequence[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    allowed: Collection[int] = (0,),
    timeout: float = 1800,
) -> str:
    """A command's standard output. Ends everything with what it said where it fails."""
    words = [os.fspath(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode not in allowed:
        raise SystemExit(
            f"error: {' '.join(words)} ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout
