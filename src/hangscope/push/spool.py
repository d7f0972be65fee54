"""What waits to be sent, on disk: one file of JSON an entry, and beside an incident's its bundle.

An entry counts once its JSON has its name. It names the server that it is for: evidence for one is not sent to
another. What a server refuses for good is kept aside in `refused/`, with the reason. The folder has a bound: where it
is reached, the oldest incidents go, and who sends says how many. It is for one user alone.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any

from hangscope.incident.layout import as_bytes, safe_name
from hangscope.safeio import bounded_json
from hangscope.safeio.durable_file import durable_file
from hangscope.safeio.safe_files import (
    append_below,
    listing,
    make_folder,
    make_private,
    open_file,
    read_file,
    remove_file,
    rename_below,
)

MOST_BYTES = 4 << 30
MOST_ENTRIES = 2000
INCIDENT = "incident"
ROSTER = "roster"
END = "end"
_VALUE_BYTES = 16 << 20
_ABANDONED_S = 86400.0
_LOCK = "lock"
_REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Entry:
    """Something to send. `bundle` is an incident's evidence."""

    name: str
    kind: str
    value: dict[str, Any]
    bundle: Path | None
    size: int
    server: str | None = None
    """None: kept by a hangscope that did not note it."""


def default_spool(environ: Mapping[str, str]) -> Path:
    """Below the user's own state, one folder a machine: homes are often shared by many."""
    home = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "hangscope" / "spool" / safe_name(socket.gethostname())


class Spool:
    """The folder, made for this user alone where it is missing."""

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        make_folder(folder.parent)
        make_private(folder)

    def add(
        self, kind: str, value: Mapping[str, Any], bundle: Path | None = None, *, server: str | None = None
    ) -> None:
        """Keep something to send to a server; a bundle is copied."""
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        if bundle is not None:
            with open_file(bundle) as source, durable_file(self.folder, f"{name}.tar.gz") as out:
                while piece := source.read(1 << 20):
                    out.write(piece)
        with durable_file(self.folder, f"{name}.json") as out:
            out.write(as_bytes(json.dumps({"kind": kind, "value": value, "server": server})))

    def entries(self) -> list[Entry]:
        """What waits, the oldest first. What cannot be read is none, and what broke off long ago is cleared away."""
        sizes = {each.name: each.size for each in self._files()}
        found = []
        for name in sorted(sizes):
            stem, _, ending = name.partition(".")
            if ending == "json" and (entry := self._entry(stem, sizes)) is not None:
                found.append(entry)
            elif ending == "tar.gz" and f"{stem}.json" not in sizes and _age(stem) > _ABANDONED_S:
                self._remove_file(name)
        return found

    def shrink(self) -> int:
        """Let the oldest incidents go until the bound is kept; how many went."""
        waiting = self.entries()
        size = sum(entry.size for entry in waiting)
        gone = 0
        for entry in waiting:
            if size <= self._most_bytes and len(waiting) - gone <= MOST_ENTRIES:
                break
            self.remove(entry)
            size -= entry.size
            gone += 1
        return gone

    def put_aside(self, entry: Entry, reason: str) -> Path:
        """Keep what a server refuses for good where it is not sent again; returns where."""
        aside = self.folder / _REFUSED
        make_private(aside)
        names = [f"{entry.name}.json", *([entry.bundle.name] if entry.bundle is not None else [])]
        for name in names:
            rename_below(self.folder, name, f"{_REFUSED}/{name}")
        with durable_file(aside, f"{entry.name}.reason") as out:
            out.write(as_bytes(f"{reason}\n"))
        return aside

    def remove(self, entry: Entry) -> None:
        self._remove_file(f"{entry.name}.json")
        if entry.bundle is not None:
            self._remove_file(entry.bundle.name)

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Whether nobody else sends from here; until the end of the `with` nobody else does."""
        with append_below(self.folder, _LOCK) as handle:
            try:
                flock(handle, LOCK_EX | LOCK_NB)
            except OSError:
                yield False
                return
            yield True

    def _entry(self, stem: str, sizes: Mapping[str, int]) -> Entry | None:
        try:
            said = bounded_json.loads(read_file(self.folder / f"{stem}.json", _VALUE_BYTES, follow=False))
        except (OSError, ValueError):
            return None
        if not isinstance(said, dict) or not isinstance(said.get("value"), dict):
            return None
        bundle = f"{stem}.tar.gz" if f"{stem}.tar.gz" in sizes else None
        if said.get("kind") not in (INCIDENT, ROSTER, END) or (said["kind"] == INCIDENT and bundle is None):
            return None
        size = sizes[f"{stem}.json"] + (sizes[bundle] if bundle else 0)
        server = said.get("server")
        place = self.folder / bundle if bundle else None
        return Entry(stem, said["kind"], said["value"], place, size, server if isinstance(server, str) else None)

    def _files(self) -> Iterator[_File]:
        for each in listing(self.folder):
            if not each.name.startswith("."):
                with suppress(OSError):
                    yield _File(each.name, os.stat(self.folder / each.name, follow_symlinks=False).st_size)

    def _remove_file(self, name: str) -> None:
        with suppress(FileNotFoundError):
            remove_file(self.folder / name)


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    size: int


def _age(stem: str) -> float:
    made = stem.partition("-")[0]
    return time.time() - int(made) / 1e9 if made.isdigit() else 0.0
