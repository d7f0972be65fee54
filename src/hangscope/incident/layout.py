"""The names of an incident's files, and the one way to write one. Standard library only: it runs in training images.

docs/incident-format.md describes every file.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from hangscope.safeio.safe_files import make_folder, open_file, write_below

INCIDENT_SCHEMA = "hangscope.incident/1"
NODE_SCHEMA = "hangscope.node/1"
GPUS_ASKED_SCHEMA = "hangscope.asked/1"

MANIFEST = "incident.json"
NODE_FILE = "node.json"
GPUS_ASKED_FILE = "gpu/asked.json"
"""In a node's folder: its GPUs were asked what they run, and how large its files were then. Whoever asks writes it, an
agent or a person beside it, before the answers; node.json says the same once an agent writes that."""
VERDICT_JSON = "verdict.json"
VERDICT_TEXT = "verdict.txt"
VERDICT_PAGE = "verdict.html"
TICKET = "ticket.md"
REDACTION = "redaction.json"

_LATER = re.compile(r"(?:hang|snapshot|desync|look|run)-\d{1,9}")
_OLD_LATER = re.compile(r"(.+)\.((?:hang|snapshot)-\d{1,9})")
"""How versions before called a later hang: beside the first, not inside of its directory."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def safe_name(text: str) -> str:
    """`text` as a file name: anything but letters, digits, dot, dash and underscore becomes a dash, never empty."""
    cleaned = _UNSAFE.sub("-", text).strip(".") or "-"
    return cleaned[:120]


def is_later(name: str) -> bool:
    """Whether a folder of a run's directory is an incident of its own: a later hang, a snapshot, a desync, or another
    run. A look is what the agents of several nodes compare while the job runs."""
    return _LATER.fullmatch(name) is not None


def own_files(inside: str) -> bool:
    """Whether a file, by its path inside an incident's directory, is that incident's own, and not of a later one."""
    folder, slash, _ = inside.partition("/")
    return not slash or not is_later(folder)


Place = tuple[tuple[str, ...], tuple[str, ...]]


def place_of(folder: tuple[str, ...]) -> Place:
    """An incident's folder as (the first run's directory, which later one it is in there): nothing for the first."""
    end = len(folder)
    while end and is_later(folder[end - 1]):
        end -= 1
    later = folder[end:]
    old = _OLD_LATER.fullmatch(folder[end - 1]) if end and not later else None
    return ((*folder[: end - 1], old[1]), (old[2],)) if old else (folder[:end], later)


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
    make_folder(path.parent, wary=False)
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


def file_entry(path: str | Path) -> dict[str, Any]:
    """Size and checksum of one file, as the manifest lists it."""
    digest = hashlib.sha256()
    size = 0
    with open_file(path, follow=False) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "sha256": digest.hexdigest()}
