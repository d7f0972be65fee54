"""Lines of the ranks' source files, as each rank sees them: its own root and working directory, its own rights."""

from __future__ import annotations

import os
from pathlib import Path

from hangscope.sources.ranks import RankSeen

MOST_BYTES = 4 << 20
MOST_FILES = 64


class SourceLines:
    """Keeps the files that it read last; a rank is sampled in the same few again and again."""

    def __init__(self) -> None:
        self._files: dict[tuple[int, str], list[bytes]] = {}

    def line(self, rank: RankSeen, file: str, number: int) -> str:
        """One line, counted from 1; empty where there is none or it may not be read."""
        key = (rank.process.pid, file)
        if key not in self._files:
            if len(self._files) >= MOST_FILES:
                self._files.clear()
            self._files[key] = _read(rank, file).split(b"\n")
        lines = self._files[key]
        return lines[number - 1].decode(errors="replace")[:1000] if 0 < number <= len(lines) else ""


def path_for(rank: RankSeen, file: str) -> str:
    """A file by the name that is on a rank's stack, as a path that its rights open. Raises OSError where it is gone."""
    if rank.rights.inside is None and not file.startswith("/"):
        return os.path.join(os.readlink(f"/proc/{rank.process.pid}/cwd"), file)
    return file


def _read(rank: RankSeen, file: str) -> bytes:
    try:
        return rank.rights.read(Path(path_for(rank, file)), MOST_BYTES)
    except (OSError, ValueError):
        return b""
