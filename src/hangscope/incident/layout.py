"""The names of an incident's files, and the one way to write one. Standard library only: it runs in training images.

docs/incident-format.md describes every file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INCIDENT_SCHEMA = "hangscope.incident/1"
NODE_SCHEMA = "hangscope.node/1"

MANIFEST = "incident.json"
NODE_FILE = "node.json"
VERDICT_JSON = "verdict.json"
VERDICT_TEXT = "verdict.txt"
VERDICT_PAGE = "verdict.html"
TICKET = "ticket.md"
REDACTION = "redaction.json"

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_HALF_WRITTEN = re.compile(r"\..*\.part")


def safe_name(text: str) -> str:
    """`text` as a file name: anything but letters, digits, dot, dash and underscore becomes a dash, never empty."""
    cleaned = _UNSAFE.sub("-", text).strip(".") or "-"
    return cleaned[:120]


def node_dir(incident: Path, node: str) -> Path:
    return incident / "nodes" / safe_name(node)


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `data` under a temporary name in the same directory, then rename. Makes the directory where needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
        os.chmod(temporary, 0o644)  # mkstemp makes 0600; an incident is read by the whole team
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=1, sort_keys=False, ensure_ascii=False) + "\n")


def file_entry(path: Path) -> dict[str, Any]:
    """Size and checksum of one file, as the manifest lists it."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": digest.hexdigest()}


def walk_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Every regular file below `root` as (path inside, with slashes; path on disk), sorted by the former.

    Half-written files are left out, and so are pipes, sockets and devices: opening a dump pipe would wait for ever.
    Links are not followed: a link inside leads to what is met anyway, and one that leads outside may have been put
    there by somebody else.
    """
    found: list[tuple[str, Path]] = []
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in names:
            path = os.path.join(folder, name)
            if not _HALF_WRITTEN.fullmatch(name) and os.path.isfile(path) and not os.path.islink(path):
                found.append((os.path.relpath(path, root).replace(os.sep, "/"), Path(path)))
    yield from sorted(found)


def outside_links(root: Path) -> list[str]:
    """Links to files outside `root`, by their path inside: what `walk_files` leaves out and somebody may miss."""
    inside = os.path.realpath(root) + os.sep
    return sorted(
        os.path.relpath(path, root).replace(os.sep, "/")
        for folder, _, names in os.walk(root)
        for name in names
        if os.path.islink(path := os.path.join(folder, name))
        and os.path.isfile(path)
        and not os.path.realpath(path).startswith(inside)
    )
