"""This node's part of an incident: where captures put their files, and the gaps they left."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hangscope.incident.layout import as_bytes, as_json
from hangscope.safeio.safe_files import make_folder, read_below, read_file, write_below

FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOENT))
"""What a directory answers that takes nothing more: full, read-only, gone. A link that somebody put there is no such
answer: what is refused stays refused."""
MOST_MOVED = 256 << 20


class NodeDir:
    """`directory` is nodes/<host> of one incident. A file that cannot be written is a gap; nothing here raises.

    Where the incident's directory takes nothing more, also in the middle of a capture, the part goes on in the one
    that `spare` makes, with what was saved so far.
    """

    def __init__(self, incident: Path, directory: Path, spare: Callable[[], Path] | None = None) -> None:
        self.incident = incident
        self.directory = directory
        self.moved = ""
        """Why it went elsewhere, empty where it did not."""
        self._spare = spare
        self._gaps: dict[tuple[str, int | None], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def write(self, name: str, data: bytes | str, *, rank: int | None = None) -> bool:
        try:
            self._put(name, as_bytes(data) if isinstance(data, str) else data)
        except OSError as error:
            self.gap(name, f"cannot be written: {error.strerror or error}", rank)
            return False
        return True

    def write_json(self, name: str, value: Any, *, rank: int | None = None) -> bool:
        return self.write(name, as_json(value), rank=rank)

    def _put(self, name: str, data: bytes) -> None:
        """Below the incident, without following a link: on a shared file system others may have put some there."""
        incident = self.incident
        directory = self.directory
        try:
            make_folder(incident)
            write_below(incident, f"{directory.relative_to(incident).as_posix()}/{name}", data, wary=True)
        except OSError as error:
            if error.errno not in FULL or not self._move(incident, error):
                raise
            write_below(self.incident, f"{self.directory.relative_to(self.incident).as_posix()}/{name}", data)

    def _move(self, full: Path, error: OSError) -> bool:
        """Go on elsewhere, once; True where there is such a place."""
        with self._lock:
            if self.incident != full:
                return True  # another thread has been here
            if self._spare is None:
                return False
            make_spare = self._spare
            self._spare = None  # once
            try:
                incident = make_spare()
            except OSError:
                return False
            inside = self.directory.relative_to(full)
            _copy(self.directory, incident, inside)
            self.moved = error.strerror or str(error)
            self.directory = incident / inside
            self.incident = incident
            return True

    def has(self, name: str) -> bool:
        return (self.directory / name).exists()

    def read(self, name: str, limit: int) -> bytes:
        """What was written under that name. Others may be able to put something else there."""
        return read_below(self.incident, f"{self.directory.relative_to(self.incident).as_posix()}/{name}", limit)

    def gap(self, what: str, why: str, rank: int | None = None) -> None:
        with self._lock:
            self._gaps[what, rank] = {"what": what, "why": why, "rank": rank}

    def filled(self, what: str, rank: int | None = None) -> None:
        """A later try succeeded: there is no gap any more."""
        with self._lock:
            self._gaps.pop((what, rank), None)

    @property
    def gaps(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._gaps.values())


def _copy(source: Path, incident: Path, inside: Path) -> None:
    """What is whole of the files so far; the newest are those of the capture, a log may be too large to take along."""
    left = MOST_MOVED
    for folder, _, names in os.walk(source):
        for name in names:
            path = Path(folder, name)
            try:
                data = read_file(path, min(left, 64 << 20), follow=False, tail=path.suffix == ".log")
                write_below(incident, (inside / path.relative_to(source)).as_posix(), data)
                left -= len(data)
            except OSError:
                continue
