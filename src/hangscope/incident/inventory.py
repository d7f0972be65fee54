"""The incidents below a directory: found by their manifests, listed, and taken away when they are old.

Nothing but what an incident is made of is ever deleted: a directory that somebody gave to `run` may hold anything else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hangscope.errors import DamagedError, NotFoundError
from hangscope.incident import layout
from hangscope.incident import manifest as manifests
from hangscope.incident.manifest import Manifest
from hangscope.safeio import bounded_json
from hangscope.safeio.evidence_names import is_walked
from hangscope.safeio.held import held, status_of
from hangscope.safeio.safe_files import listing, read_below, remove_empty, remove_file, remove_tree

MOST_FOLDERS = 20_000
"""Directories that are looked into."""
DEEPEST = 6
"""hangscope/JOB/ATTEMPT/run-2/hang-2 is five."""
_VERDICT_BYTES = 64 << 20
_OWN_FILES = (
    *(layout.MANIFEST, layout.VERDICT_JSON, layout.VERDICT_TEXT, layout.VERDICT_PAGE, layout.TICKET),
    *(layout.REDACTION, "run.json", "stall.json"),
)
_OWN_FOLDER = "nodes"


@dataclass(frozen=True, slots=True)
class Listed:
    """One incident on disk, with what its manifest and its verdict say in short."""

    path: Path
    manifest: Manifest
    captured_s: float
    """When it was captured; where nothing tells, when its manifest was written."""
    changed_s: float
    owner: int
    outcome: str | None
    headline: str | None

    @property
    def size(self) -> int:
        """The bytes of the files that its manifest lists."""
        sizes = (entry.get("size") for entry in self.manifest.files.values())
        return sum(size for size in sizes if isinstance(size, int) and size > 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "captured_at": self.manifest.captured_at,
            "job": self.manifest.job,
            "attempt": self.manifest.attempt,
            "reason": self.manifest.reason,
            "world_size": self.manifest.world_size,
            "nodes": list(self.manifest.nodes_present or ()),
            "outcome": self.outcome,
            "headline": self.headline,
            "bytes": self.size,
        }


def incidents(directory: Path) -> list[Listed]:
    """Every incident at or below `directory`, the oldest first. No link is followed on the way down."""
    if not directory.is_dir():
        raise NotFoundError(f"{directory}: no such directory", hint="give the directory that `hangscope run` uses")
    found: list[Listed] = []
    waiting = [(directory, 0)]
    looked = 0
    with held(directory):
        while waiting and looked < MOST_FOLDERS:
            folder, depth = waiting.pop()
            looked += 1
            incident = _listed(folder)
            if incident is not None:
                found.append(incident)
            if depth < DEEPEST:
                waiting += [(folder / name, depth + 1) for name in _folders(folder, inside=incident is not None)]
    return sorted(found, key=lambda each: (each.captured_s, str(each.path)))


def newest(directory: Path) -> Path:
    """The incident at or below `directory` that was captured last."""
    found = incidents(directory)
    if not found:
        raise NotFoundError(
            f"{directory}: there is no incident here", hint="`hangscope ls DIR` lists those of a directory"
        )
    return found[-1].path


def has_later(directory: Path) -> bool:
    """Whether a run's directory has incidents beside its first one."""
    return directory.is_dir() and bool(_folders(directory, inside=True))


def _folders(folder: Path, *, inside: bool) -> list[str]:
    """Where other incidents may be: of an incident only the later ones in it."""
    try:
        names = [each.name for each in listing(folder) if each.is_folder and is_walked(each.name)]
    except OSError:
        return []
    return [name for name in names if (layout.is_later(name) if inside else name != _OWN_FOLDER)]


def _listed(folder: Path) -> Listed | None:
    try:
        described = manifests.read(folder)
        status = status_of(folder / layout.MANIFEST, follow=False)
        owner = status_of(folder, follow=False).st_uid
    except (OSError, DamagedError):
        return None
    if described is None:
        return None
    verdict = _verdict(folder)
    return Listed(
        folder,
        described,
        _seconds(described.captured_at) or status.st_mtime,
        status.st_mtime,
        owner,
        _text(verdict.get("outcome")),
        _text(verdict.get("headline")) or _text(verdict.get("summary")),
    )


def _verdict(folder: Path) -> Mapping[str, Any]:
    try:
        value = bounded_json.loads(read_below(folder, layout.VERDICT_JSON, _VERDICT_BYTES))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _seconds(moment: str | None) -> float | None:
    try:
        at = datetime.fromisoformat((moment or "").replace("Z", "+00:00"))
        return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None


# ---- taking old ones away --------------------------------------------------------------------------------------------

RUNNING_S = 600.0
"""A run whose agents wrote so lately goes on, however old its first hang is."""


def why_kept(incident: Listed, older_than_s: float) -> str:
    """Why an incident stays; nothing where it may go."""
    now = time.time()
    if now - max(incident.captured_s, incident.changed_s) < older_than_s:
        return "not old enough"
    if incident.owner != os.geteuid():
        return "somebody else's"
    if _is_running(incident.path, now):
        return "its run goes on"
    return ""


def _is_running(folder: Path, now: float) -> bool:
    try:
        nodes = [each.name for each in listing(folder / _OWN_FOLDER) if each.is_folder]
    except OSError:
        return False
    return any(now - _changed(folder / _OWN_FOLDER / name / "status.json") < RUNNING_S for name in nodes)


def _changed(path: Path) -> float:
    try:
        return status_of(path, follow=False).st_mtime
    except OSError:
        return 0.0


def remove(incident: Listed) -> bool:
    """Delete what an incident is made of; whether its directory is gone. What else lies in it stays, and so does the
    directory then. No link is followed."""
    folder = incident.path
    with held(folder):
        remove_tree(folder / _OWN_FOLDER)
        for name in _OWN_FILES:
            try:
                remove_file(folder / name)
            except OSError:
                continue
    try:
        remove_empty(folder)
    except OSError:
        return False
    return True
