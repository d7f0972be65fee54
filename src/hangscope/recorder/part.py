"""This node's part of an incident: where captures put their files, and the gaps they left."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from hangscope.incident.layout import as_json
from hangscope.incident.touch import write_below


class Part:
    """`directory` is nodes/<host> of one incident. A file that cannot be written is a gap; nothing here raises."""

    def __init__(self, incident: Path, directory: Path) -> None:
        self.incident = incident
        self.directory = directory
        self._gaps: dict[tuple[str, int | None], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def write(self, name: str, data: bytes | str, *, rank: int | None = None) -> bool:
        try:
            self._put(name, data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data)
        except OSError as error:
            self.gap(name, f"cannot be written: {error.strerror or error}", rank)
            return False
        return True

    def write_json(self, name: str, value: Any, *, rank: int | None = None) -> bool:
        try:
            self._put(name, as_json(value).encode("utf-8", "surrogateescape"))
        except OSError as error:
            self.gap(name, f"cannot be written: {error.strerror or error}", rank)
            return False
        return True

    def _put(self, name: str, data: bytes) -> None:
        """Below the incident, without following a link: on a shared file system others may have put some there."""
        self.incident.mkdir(parents=True, exist_ok=True)
        inside = self.directory.relative_to(self.incident).as_posix()
        write_below(self.incident, f"{inside}/{name}", data)

    def has(self, name: str) -> bool:
        return (self.directory / name).exists()

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
