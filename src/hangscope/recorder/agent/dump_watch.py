"""Dumps that PyTorch has written by itself: one that is new says that its watchdog has given up."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from hangscope.processes import linux_process
from hangscope.recorder.live.watched_rank import WatchedRank
from hangscope.recorder.setup.variables import DUMP_NAMES


class DumpWatch:
    """`folder` is this node's own, in which PyTorch's dumps go unless the user's settings put them elsewhere."""

    def __init__(self, folder: Path, started_at: float) -> None:
        self.prefixes: set[str] | None = None
        """How the paths of PyTorch's dumps begin; None until a rank's environment is known."""
        self._folder = folder
        self._started_at = started_at
        self._owners = {os.geteuid()}
        self._seen: set[Path] = set()

    def fresh(self, ranks: Iterable[WatchedRank]) -> list[Path]:
        """Those that were not there when this was last asked."""
        found = []
        for prefix in self._prefixes(ranks):
            folder, start = os.path.split(prefix)
            with contextlib.suppress(OSError), os.scandir(folder) as listing:
                found += [Path(entry.path) for entry in listing if self._is_fresh(entry, start)]
        return found

    def _is_fresh(self, entry: os.DirEntry[str], start: str) -> bool:
        path = Path(entry.path)
        if not entry.name.startswith(start) or path in self._seen or _is_ours(entry.name):
            return False
        if not entry.is_file(follow_symlinks=False):
            return False
        self._seen.add(path)
        # A directory like /tmp holds what others write: theirs is no word of our ranks.
        stat = entry.stat(follow_symlinks=False)
        return stat.st_mtime >= self._started_at - 1 and stat.st_uid in self._owners

    def _prefixes(self, ranks: Iterable[WatchedRank]) -> set[str]:
        """Anything in our own folder, or as the user's settings say."""
        own = f"{self._folder / 'dumps'}/"
        if self.prefixes is None:
            first = next((rank for rank in ranks if not rank.ended), None)
            environ = linux_process.environment(first.process.pid) if first is not None else {}
            if not environ:
                return {own}
            self.prefixes = {own, *(environ[name] for name in DUMP_NAMES if environ.get(name))}
            with contextlib.suppress(OSError):
                self._owners.add(os.stat(self._folder).st_uid)  # as the file system has us: another on some NFS
        return self.prefixes


def _is_ours(name: str) -> bool:
    return name.startswith((".", "last_rank_")) or name.endswith((".json", ".pickle", ".pipe", ".part"))
