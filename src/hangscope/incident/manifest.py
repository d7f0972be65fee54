"""incident.json: what an incident holds, of which attempt of which job, with a checksum per file.

Reading is tolerant (a manifest may come from a stranger or from a newer hangscope), writing is exact.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from hangscope.__about__ import __version__
from hangscope.errors import DamagedError, NotFoundError
from hangscope.incident.layout import INCIDENT_SCHEMA, MANIFEST, NODE_FILE, counted, file_entry, walk_files, write_json
from hangscope.incident.stale_files import Stale, stale_dumps
from hangscope.safeio import bounded_json
from hangscope.safeio.safe_files import Refused, read_file

MAX_MANIFEST_BYTES = 256 << 20
"""100,000 ranks with ten files each make about 200 MB of manifest; more is not a manifest."""

LARGE = 1 << 30
"""More than an agent writes into one file."""
MOST_GAPS = 20_000
MOST_EXTRA = 1 << 20

_KNOWN = ("job", "attempt", "reason", "detail", "captured_at", "nodes_expected", "nodes_present", "world_size")


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that should be there and is not, with the reason: a gap, as the manifest writes it."""

    what: str
    why: str
    node: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "why": self.why, "node": self.node}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of incident.json. None means that nothing says so. `extra` keeps fields of other versions."""

    job: str | None = None
    attempt: str | None = None
    reason: str = "collected"
    detail: str = ""
    captured_at: str | None = None
    nodes_expected: tuple[str, ...] | None = None
    nodes_present: tuple[str, ...] | None = None
    world_size: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    gaps: tuple[Missing, ...] = ()
    stale: tuple[Stale, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str | None, str | None]:
        """Which attempt of which job. Evidence of two identities is never mixed."""
        return self.job, self.attempt

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"schema": INCIDENT_SCHEMA}
        for name in _KNOWN:
            member = getattr(self, name)
            value[name] = list(member) if isinstance(member, tuple) else member
        value["versions"] = dict(self.versions)
        value["gaps"] = [gap.to_json() for gap in self.gaps]
        value["stale"] = [{"file": item.file, "why": item.why} for item in self.stale]
        value.update(self.extra)
        value["files"] = {name: dict(entry) for name, entry in sorted(self.files.items())}
        return value


def now() -> str:
    """The time as manifests write it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse(raw: bytes, *, file: str = MANIFEST) -> Manifest:
    """The manifest in `raw`. Fields of an unexpected type count as not said; only what is no manifest at all raises."""
    if len(raw) > MAX_MANIFEST_BYTES:
        raise DamagedError(f"{len(raw)} bytes are too many for a manifest", file=file)
    try:
        value = bounded_json.loads(raw)
    except bounded_json.TooMuch as error:
        raise DamagedError(f"too much for a manifest: {error}", file=file) from None
    except ValueError as error:
        raise DamagedError(f"not JSON ({error})", file=file) from None
    if not isinstance(value, dict):
        raise DamagedError("not a manifest: the top level is no object", file=file)
    schema = value.get("schema")
    if not isinstance(schema, str) or not schema.startswith("hangscope.incident/"):
        raise DamagedError(f"not a manifest: schema is {schema!r}", file=file)
    used = {"schema", "versions", "files", "gaps", "stale", *_KNOWN}
    return Manifest(
        job=_text(value.get("job")),
        attempt=_text(value.get("attempt")),
        reason=_text(value.get("reason")) or "collected",
        detail=_text(value.get("detail")) or "",
        captured_at=_text(value.get("captured_at")),
        nodes_expected=_texts(value.get("nodes_expected")),
        nodes_present=_texts(value.get("nodes_present")),
        world_size=_number(value.get("world_size")),
        versions={k: v for k, v in _mapping(value.get("versions")).items() if isinstance(v, str)},
        files={k: v for k, v in _mapping(value.get("files")).items() if isinstance(v, dict)},
        gaps=tuple(islice(_gaps(value.get("gaps")), MOST_GAPS)),
        stale=tuple(islice(_stale(value.get("stale")), MOST_GAPS)),
        extra=_extra({key: member for key, member in value.items() if key not in used}, len(raw)),
    )


def _extra(said: dict[str, Any], size: int) -> dict[str, Any]:
    """What we do not know is handed on; not in any amount, because it is written, redacted and read again."""
    if size <= MOST_EXTRA:
        return said
    return {key: member for key, member in said.items() if len(json.dumps(member)) <= MOST_EXTRA // 8}


def read(root: Path) -> Manifest | None:
    """The manifest of the incident at `root`, or None where there is none."""
    path = root / MANIFEST
    if not path.is_file():
        return None
    try:
        return parse(read_file(path, MAX_MANIFEST_BYTES), file=str(path))
    except Refused as refused:
        raise DamagedError(str(refused.strerror), file=str(path)) from None


def write(root: Path, manifest: Manifest) -> None:
    write_json(root / MANIFEST, manifest.to_json())


def build(root: Path, given: Manifest | None = None, *, seconds: float | None = None) -> Manifest:
    """A manifest of every file below `root`; with `seconds`, of those that can be read in that time. Whoever waits for
    a verdict does not wait for the checksum of a terabyte that somebody put there.

    `given` says what the files cannot: the job, the reason, the gaps. The nodes present are those with a folder below
    nodes/; job, attempt and versions come from the nodes' own node.json where `given` leaves them out.
    """
    if not root.is_dir():
        raise NotFoundError(f"{root}: no such directory")
    given = given or Manifest()
    files: dict[str, Mapping[str, Any]] = {}
    ages: dict[str, float] = {}
    unread: list[Missing] = []
    until = None if seconds is None else time.monotonic() + seconds
    for name, path in walk_files(root):
        if name == MANIFEST:
            continue
        try:
            if until is not None and (time.monotonic() > until or path.lstat().st_size > LARGE):
                unread.append(Missing(name, "not listed: too large, or too much to read in time"))
                continue
            files[name] = file_entry(path)
            ages[name] = path.stat().st_mtime
        except OSError as error:
            unread.append(Missing(name, f"cannot be read: {error.strerror}"))
    unread = [Missing(what, why) for what, why in counted((each.what, each.why) for each in unread)]
    present = sorted({name.split("/")[1] for name in files if name.startswith("nodes/") and name.count("/") > 1})
    nodes = [_node(root / name) for name in files if name.endswith(f"/{NODE_FILE}")]
    versions = {key: text for node in nodes for key, text in _mapping(node.get("versions")).items() if text}
    return replace(
        given,
        job=given.job or _one(node.get("job") for node in nodes),
        attempt=given.attempt or _one(node.get("attempt") for node in nodes),
        captured_at=given.captured_at or now(),
        nodes_present=tuple(present) if present else given.nodes_present,
        versions={**versions, **given.versions, "hangscope": __version__},
        files=files,
        gaps=(*given.gaps, *unread),
        stale=tuple(stale_dumps(ages)),
    )


def verify(root: Path) -> list[str]:
    """What is not as the manifest says, one sentence each; empty when all is well."""
    manifest = read(root)
    if manifest is None:
        raise NotFoundError(f"{root}: no {MANIFEST} here", hint="only an incident can be verified")
    there = {name: path for name, path in walk_files(root) if name != MANIFEST}
    problems = [f"{name}: listed, but not there" for name in manifest.files if name not in there]
    for name, path in there.items():
        entry = manifest.files.get(name)
        if entry is None:
            problems.append(f"{name}: there, but not listed")
        elif file_entry(path) != {"size": entry.get("size"), "sha256": entry.get("sha256")}:
            problems.append(f"{name}: not the file that was listed (size or checksum differ)")
    return sorted(problems)


def merge(parts: Sequence[Manifest]) -> Manifest:
    """One manifest of the parts that several nodes wrote about one attempt of one job.

    The earliest capture gives reason and detail: it saw the trouble first. Parts of another attempt are refused: pick
    with `newest` before.
    """
    if not parts:
        return Manifest()
    ordered = sorted(parts, key=lambda part: part.captured_at or "~")
    known = {part.identity for part in ordered if part.identity != (None, None)}
    if len(known) > 1:
        raise ValueError(f"parts of different attempts cannot be merged: {sorted(map(str, known))}")
    first = next((part for part in ordered if part.reason != "collected"), ordered[0])
    present = {node for part in ordered for node in part.nodes_present or ()}
    expected = {node for part in ordered for node in part.nodes_expected or ()}
    job, attempt = next(iter(known), (None, None))
    return Manifest(
        job=job,
        attempt=attempt,
        reason=first.reason,
        detail=first.detail,
        captured_at=first.captured_at,
        nodes_expected=tuple(sorted(expected)) or None,
        nodes_present=tuple(sorted(present)) or None,
        world_size=max((part.world_size for part in ordered if part.world_size), default=None),
        versions={key: text for part in ordered for key, text in part.versions.items()},
        files={name: entry for part in ordered for name, entry in part.files.items()},
        gaps=tuple(dict.fromkeys(gap for part in ordered for gap in part.gaps)),
        stale=tuple(dict.fromkeys(item for part in ordered for item in part.stale)),
        extra={key: value for part in ordered for key, value in part.extra.items()},
    )


def newest(parts: Iterable[tuple[str, Manifest]]) -> tuple[list[str], list[tuple[str, Manifest]]]:
    """Of named incident parts: the names that belong to the newest attempt, and the other parts.

    Attempts are compared as the numbers that launchers give; where they are no numbers, by the time of capture.
    """
    named = list(parts)
    groups: dict[tuple[str | None, str | None], list[tuple[str, Manifest]]] = {}
    for name, part in named:
        groups.setdefault(part.identity, []).append((name, part))
    if not groups:
        return [], []

    def age(identity: tuple[str | None, str | None]) -> tuple[str, int]:
        latest = max((part.captured_at or "" for _, part in groups[identity]), default="")
        attempt = identity[1] or ""
        return latest, int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 20 else -1

    jobs = {identity[0] for identity in groups}
    if len(jobs) == 1:
        best = max(groups, key=lambda identity: (age(identity)[1], age(identity)[0]))
    else:
        best = max(groups, key=age)
    return [name for name, _ in groups[best]], [item for item in named if item[1].identity != best]


# ---- tolerant reading ------------------------------------------------------------------------------------------------


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else None


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _gaps(value: object) -> Iterable[Missing]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            yield Missing(_text(item.get("what")) or "", _text(item.get("why")) or "", _text(item.get("node")))


def _stale(value: object) -> Iterable[Stale]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            yield Stale(_text(item.get("file")) or "", _text(item.get("why")) or "")


def _node(path: Path) -> Mapping[str, Any]:
    try:
        return _mapping(bounded_json.loads(read_file(path, MAX_MANIFEST_BYTES)))
    except (OSError, ValueError):
        return {}


def _one(values: Iterable[object]) -> str | None:
    """The value that all agree on; None where they do not."""
    distinct = {text for value in values if (text := _text(value)) is not None}
    return distinct.pop() if len(distinct) == 1 else None
