"""`latest` as a path: the newest incident here, or below a directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hangscope.cli.output import note
from hangscope.incident import inventory

LATEST = "latest"


def here() -> Path:
    """Where this user's incidents are: HANGSCOPE_DIR, else ./hangscope, else the working directory."""
    named = os.environ.get("HANGSCOPE_DIR")
    if named and Path(named).is_dir():
        return Path(named)
    return Path("hangscope") if Path("hangscope").is_dir() else Path()


def resolved(paths: Sequence[str]) -> tuple[str, ...]:
    """The paths, with the newest incident in the place of `latest` and of DIR/latest. A file of that name wins."""
    return tuple(str(one_resolved(Path(path))) if Path(path).name == LATEST else path for path in paths)


def one_resolved(path: Path) -> Path:
    if path.name != LATEST or os.path.lexists(path):
        return path
    newest = inventory.newest(here() if path == Path(LATEST) else path.parent)
    note(f"latest: {newest}")
    return newest
