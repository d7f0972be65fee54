"""incident.json: what an incident holds, of which attempt of which job, with a checksum per file.

Reading is tolerant (a manifest may come from a stranger or from a newer hangscope), writing is exact.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from hangscope.__about__ import __version__
from hangscope.errors import DamagedError, NotFoundError
from hangscope.incident.layout import INCIDENT_SCHEMA, MANIFEST, NODE_FILE, file_entry, own_files, write_json
from hangscope.incident.stale_files import Stale, stale_dumps
from hangscope.safeio import bounded_json, limits
from hangscope.safeio.safe_files import Refused, read_file
from hangscope.safeio.walk import counted, survey

T = TypeVar("T")

Identity = tuple[str | None, str | None]
"""A job and one of its attempts."""

LARGE = 1 << 30
"""More than an agent writes into one file: nobody who waits for a verdict waits for its checksum."""

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
    def identity(self) -> Identity:
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
    if len(raw) > limits.MANIFEST_BYTES:
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
    manifest = from_json(value)
    return replace(manifest, extra=_bounded_extra(manifest.extra)) if len(raw) > limits.MANIFEST_EXTRA else manifest


def from_json(value: Mapping[str, Any]) -> Manifest:
    """The manifest in JSON that was parsed already, and that anybody may have written: a field of an unexpected type
    counts as not said."""
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
        gaps=tuple(islice(_gaps(value.get("gaps")), limits.MANIFEST_GAPS)),
        stale=tuple(islice(_stale(value.get("stale")), limits.MANIFEST_GAPS)),
        extra={key: member for key, member in value.items() if key not in used},
    )


def _bounded_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What we do not know is handed on; not in any amount, because it is written, redacted and read again."""
    return {key: member for key, member in extra.items() if len(json.dumps(member)) <= limits.MANIFEST_EXTRA // 8}


def read(root: Path) -> Manifest | None:
    """The manifest of the incident at `root`, or None where there is none."""
    path = root / MANIFEST
    if not path.is_file():
        return None
    try:
        return parse(read_file(path, limits.MANIFEST_BYTES), file=str(path))
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
    checked = _check_files(root, seconds)
    present = _nodes_present(checked.files)
    nodes = [_node_file(root / name) for name in checked.files if name.endswith(f"/{NODE_FILE}")]
    return replace(
        given,
        job=given.job or _agreed(node.get("job") for node in nodes),
        attempt=given.attempt or _agreed(node.get("attempt") for node in nodes),
        captured_at=given.captured_at or now(),
        nodes_present=present or given.nodes_present,
        versions={**_versions(nodes), **given.versions, "hangscope": __version__},
        files=checked.files,
        gaps=(*given.gaps, *checked.unread),
        stale=tuple(stale_dumps(checked.modified)),
    )


@dataclass(frozen=True, slots=True)
class _Checked:
    """Files with their checksums and times of change, and those that could not be read."""

    files: dict[str, Mapping[str, Any]]
    modified: dict[str, float]
    unread: tuple[Missing, ...]


def _check_files(root: Path, seconds: float | None) -> _Checked:
    """Size, checksum and time of change of every file but the manifest itself, as far as `seconds` reach."""
    until = None if seconds is None else time.monotonic() + seconds
    files: dict[str, Mapping[str, Any]] = {}
    modified: dict[str, float] = {}
    unread: list[tuple[str, str]] = []
    for name, path in survey(root).files:
        if name == MANIFEST or not own_files(name):
            continue
        try:
            if until is not None and _takes_too_long(path, until):
                unread.append((name, "not listed: too large, or too much to read in time"))
                continue
            files[name] = file_entry(path)
            modified[name] = os.stat(path).st_mtime
        except OSError as error:
            unread.append((name, f"cannot be read: {error.strerror}"))
    return _Checked(files, modified, tuple(Missing(what, why) for what, why in counted(unread)))


def _takes_too_long(path: str, until: float) -> bool:
    return time.monotonic() > until or os.lstat(path).st_size > LARGE


def _nodes_present(names: Iterable[str]) -> tuple[str, ...]:
    """The nodes that have a folder with a file in it below nodes/."""
    below = (name.split("/") for name in names if name.startswith("nodes/"))
    return tuple(sorted({parts[1] for parts in below if len(parts) > 2}))


def _versions(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: text for node in nodes for key, text in _mapping(node.get("versions")).items() if text}


def verify(root: Path) -> list[str]:
    """What is not as the manifest says, one sentence each; empty when all is well."""
    manifest = read(root)
    if manifest is None:
        raise NotFoundError(f"{root}: no {MANIFEST} here", hint="only an incident can be verified")
    there = {name: path for name, path in survey(root).files if name != MANIFEST}
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
    job, attempt = _one_identity(ordered)
    first = next((part for part in ordered if part.reason != "collected"), ordered[0])
    return Manifest(
        job=job,
        attempt=attempt,
        reason=first.reason,
        detail=first.detail,
        captured_at=first.captured_at,
        nodes_expected=_all_nodes(part.nodes_expected for part in ordered),
        nodes_present=_all_nodes(part.nodes_present for part in ordered),
        world_size=max((part.world_size for part in ordered if part.world_size), default=None),
        versions=_one_table(part.versions for part in ordered),
        files=_one_table(part.files for part in ordered),
        gaps=_each_once(part.gaps for part in ordered),
        stale=_each_once(part.stale for part in ordered),
        extra=_one_table(part.extra for part in ordered),
    )


def _one_identity(parts: Iterable[Manifest]) -> Identity:
    """The job and attempt that all parts are of which say so."""
    known = {part.identity for part in parts if part.identity != (None, None)}
    if len(known) > 1:
        raise ValueError(f"parts of different attempts cannot be merged: {sorted(map(str, known))}")
    return next(iter(known), (None, None))


def _all_nodes(lists: Iterable[Sequence[str] | None]) -> tuple[str, ...] | None:
    found = {node for nodes in lists for node in nodes or ()}
    return tuple(sorted(found)) or None


def _one_table(tables: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """One table of all; what a later one says counts."""
    return {key: value for table in tables for key, value in table.items()}


def _each_once(lists: Iterable[Iterable[T]]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(lists)))


def newest(parts: Iterable[tuple[str, Manifest]]) -> tuple[list[str], list[tuple[str, Manifest]]]:
    """Of named incident parts: the names that belong to the newest attempt, and the other parts.

    Attempts are compared as the numbers that launchers give; where they are no numbers, by the time of capture.
    """
    named = list(parts)
    groups: dict[Identity, list[tuple[str, Manifest]]] = {}
    for name, part in named:
        groups.setdefault(part.identity, []).append((name, part))
    if not groups:
        return [], []

    def captured_at(identity: Identity) -> str:
        return max(part.captured_at or "" for _, part in groups[identity])

    one_job = len({job for job, _ in groups}) == 1
    if one_job:
        best = max(groups, key=lambda identity: (_attempt_number(identity), captured_at(identity)))
    else:
        best = max(groups, key=lambda identity: (captured_at(identity), _attempt_number(identity)))
    return [name for name, _ in groups[best]], [item for item in named if item[1].identity != best]


def _attempt_number(identity: Identity) -> int:
    attempt = identity[1] or ""
    return int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 20 else -1


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


def _node_file(path: Path) -> Mapping[str, Any]:
    try:
        return _mapping(bounded_json.loads(read_file(path, limits.MANIFEST_BYTES)))
    except (OSError, ValueError):
        return {}


def _agreed(values: Iterable[object]) -> str | None:
    """The value that all agree on; None where they do not."""
    distinct = {text for value in values if (text := _text(value)) is not None}
    return distinct.pop() if len(distinct) == 1 else None
