"""The names of an incident's files, and the one way to write one. Standard library only: it runs in training images.

docs/incident-format.md describes every file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hangscope.safeio.safe_files import Links, kind_of, open_file, write_below

INCIDENT_SCHEMA = "hangscope.incident/1"
NODE_SCHEMA = "hangscope.node/1"

MANIFEST = "incident.json"
NODE_FILE = "node.json"
VERDICT_JSON = "verdict.json"
VERDICT_TEXT = "verdict.txt"
VERDICT_PAGE = "verdict.html"
TICKET = "ticket.md"
REDACTION = "redaction.json"

MOST_FILES = 250_000
MOST_LEVELS = 100

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_HALF_WRITTEN = re.compile(r"\..*\.part")


def safe_name(text: str) -> str:
    """`text` as a file name: anything but letters, digits, dot, dash and underscore becomes a dash, never empty."""
    cleaned = _UNSAFE.sub("-", text).strip(".") or "-"
    return cleaned[:120]


def node_dir(incident: Path, node: str) -> Path:
    return incident / "nodes" / safe_name(node)


def as_bytes(text: str) -> bytes:
    """UTF-8, whatever is in it: a file name's own bytes come back as they were; half of a surrogate pair, which JSON of
    others may hold, is written with an escape."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o666) -> None:
    """Write `data` under a temporary name in the same directory, then rename. Makes the directory where needed.

    Who may read it is what the umask says; `mode` takes more away, for what is the owner's alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = as_bytes(data) if isinstance(data, str) else data
    write_below(path.parent, path.name, raw, mode=mode)


def write_json(path: Path, value: Any, *, mode: int = 0o666) -> None:
    write_atomic(path, as_json(value), mode=mode)


def as_json(value: Any) -> str:
    """JSON that is always UTF-8: a file name that is none is written with escapes."""
    text = json.dumps(value, indent=1, sort_keys=False, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, indent=1, sort_keys=False)
    return text + "\n"


def file_entry(path: Path) -> dict[str, Any]:
    """Size and checksum of one file, as the manifest lists it."""
    digest = hashlib.sha256()
    size = 0
    with open_file(path, follow=False) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


@dataclass(frozen=True, slots=True)
class Survey:
    """What is below a directory. `files` are (path inside, with slashes; path on disk), sorted by the former; `skipped`
    names what is there and was left alone, with the reason."""

    files: tuple[tuple[str, str], ...]
    skipped: tuple[tuple[str, str], ...]


MOST_NAMED = 1000
"""So many things that were skipped for one reason are named one by one; the rest is counted."""


def counted(skipped: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What was skipped, sorted: each thing with the reason; of a reason that thousands have, the rest as a number."""
    named: list[tuple[str, str]] = []
    times: Counter[str] = Counter()
    for what, why in sorted(skipped):
        times[why] += 1
        if times[why] <= MOST_NAMED:
            named.append((what, why))
    return [*named, *((f"{n - MOST_NAMED} more", why) for why, n in sorted(times.items()) if n > MOST_NAMED)]


def survey(root: Path, *, most: int = MOST_FILES) -> Survey:
    """Every regular file below `root`, and everything else that somebody may miss.

    Half-written files are left out without a word. Pipes, sockets and devices are never opened: a dump pipe would wait
    for ever. Links are not followed: one that leads inside leads to what is met anyway, and one that leads outside may
    have been put there by somebody else. A directory that cannot be read is skipped, and said.
    """
    files: list[tuple[str, str]] = []
    skipped: list[tuple[str, str]] = []
    inside = os.path.realpath(root) + os.sep
    links = Links()
    waiting = [(os.fspath(root), "")]
    while waiting:
        folder, front = waiting.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            skipped.append((front.rstrip("/") or ".", f"a directory that cannot be read: {error.strerror or error}"))
            continue
        for entry in entries:
            name = f"{front}{entry.name}"
            if len(files) + len(skipped) >= most:
                skipped.append((f"{front}…", f"more than {most} files; the rest was not looked at"))
                return Survey(tuple(sorted(files)), tuple(counted(skipped)))
            if entry.is_dir(follow_symlinks=False):
                if name.count("/") < MOST_LEVELS:
                    waiting.append((entry.path, f"{name}/"))
                else:
                    skipped.append((name, f"more than {MOST_LEVELS} directories deep"))
            elif entry.is_file(follow_symlinks=False):
                if not _HALF_WRITTEN.fullmatch(entry.name):
                    files.append((name, entry.path))
            elif (why := _why_not(entry, inside, links)) is not None:
                skipped.append((name, why))
    return Survey(tuple(sorted(files)), tuple(counted(skipped)))


def _why_not(entry: os.DirEntry[str], inside: str, links: Links) -> str | None:
    """Why something that is neither file nor directory is left alone; None where it is met elsewhere."""
    try:
        if not entry.is_symlink():
            return f"{kind_of(entry.stat(follow_symlinks=False).st_mode)}, not a file"
        target = links.target(entry.path)
    except OSError as error:
        return f"cannot be looked at: {error.strerror or error}"
    if target is None:
        return "a link that leads nowhere"
    if not f"{target}{os.sep}".startswith(inside):
        return "a link that leads outside, not followed"
    return None


def walk_files(root: Path) -> Iterator[tuple[str, Path]]:
    """The files of `survey` alone."""
    for name, path in survey(root).files:
        yield name, Path(path)
