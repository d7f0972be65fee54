"""Reads all files under some paths, recognises each by its content, and keeps what they say until everyone is known."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from hangscope.errors import DamagedError
from hangscope.incident.blackbox_layout import MAX_BYTES
from hangscope.incident.layout import MANIFEST
from hangscope.model import BlackBox, CallSite, Gap, Source
from hangscope.reader import archives, find_files, parallel
from hangscope.reader.dumps import dump_file, pickle_machine, ring_history
from hangscope.reader.find_files import Found
from hangscope.reader.logs.log_file import TextFile
from hangscope.reader.parallel import Work, dump_of
from hangscope.reader.ranks_in_paths import rank_of_dump
from hangscope.reader.sources import (
    blackbox_file,
    call_sites,
    error_files,
    incident_files,
    port_counters,
    ras_answers,
    rosters,
    sysfs,
)
from hangscope.reader.sources.incident_files import Manifest, NodeFile
from hangscope.reader.statements import Statement
from hangscope.safeio import bounded_json
from hangscope.safeio.evidence_names import Known
from hangscope.safeio.limits import DEFAULT as LIMITS

JSON_LIMIT = 64 << 20
_MOST_LISTED = 200_000
Progress = Callable[[int, int, str], None]
"""Is told of the bytes read, of all there are, and which file it was."""
SAME_INCIDENT_NS = 3_600_000_000_000
"""Manifests of one attempt that were captured within this time are parts of one incident."""


@dataclass
class Evidence:
    """Everything that was recognised, before anyone is identified."""

    dumps: list[dump_file.RawDump] = field(default_factory=list)
    texts: list[TextFile] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    nodes: list[NodeFile] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    answers: list[ras_answers.Answer] = field(default_factory=list)
    errors: list[tuple[error_files.ErrorFile, str, str | None, tuple[str, ...]]] = field(default_factory=list)
    """(torchrun's error file, its name, its node, its path)."""
    snapshots: list[port_counters.Snapshot] = field(default_factory=list)
    trees: dict[tuple[str, ...], sysfs.Tree] = field(default_factory=dict)
    """Copies of /sys, by where they lie; each becomes a snapshot."""
    boxes: list[BlackBox] = field(default_factory=list)
    sites: list[CallSite] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Shown name of a dump → its path, for the directories it lies in."""
    hosts: set[str] = field(default_factory=set)
    """Hosts that own directories here."""
    refused: set[int] = field(default_factory=set)
    """Ranks whose dump is there and could not be read at all."""
    refusals: int = 0
    looked_at: list[str] = field(default_factory=list)
    """Files in which nothing was recognised."""
    waiting: list[tuple[Found, str | None, str]] = field(default_factory=list)
    """Dumps on disk, with their node and form, that are read last: many of them at a time."""

    @property
    def useful(self) -> bool:
        return bool(
            self.dumps
            or any(text.useful for text in self.texts)
            or self.statements
            or self.nodes
            or self.answers
            or self.errors
            or self.snapshots
            or self.boxes
            or self.refusals
        )


class Engine(Protocol):
    """Finds and reads files elsewhere than in this process."""

    def find(self, paths: Sequence[str | Path], gaps: list[Gap]) -> list[Found]:
        """Every file under the paths, sorted."""

    def read(
        self, items: Sequence[tuple[Found, str | None]], known: int, full: bool, progress: Progress | None
    ) -> Iterator[Evidence]:
        """What each file says, in their order, for files with their nodes. `known`: dumps that there are beside."""


def gather(
    paths: Sequence[str | Path],
    *,
    full: bool = False,
    progress: Progress | None = None,
    engine: Engine | None = None,
    known: Known | None = None,
) -> Evidence:
    """Read everything that is known, of the newest attempt; in this process, or by an engine."""
    evidence = Evidence()
    listed = find_files.find(paths, evidence.gaps, known) if engine is None else engine.find(paths, evidence.gaps)
    found = _open_archives(listed, evidence)
    found = find_files.newest_attempt(found, evidence.gaps)
    found = _newest_incident(found, evidence)
    directories = _host_directories(found, evidence)
    evidence.hosts.update(directories.values())
    far = [item for item in found if engine is not None and _is_whole_file(item)]
    total, done = sum(item.size for item in found) if engine is None else 0, 0
    for item in _with_content([item for item in found if engine is None or not _is_whole_file(item)]):
        dumps_before = len(evidence.waiting)
        _read(item, _directory_host(item.parts, directories), evidence)
        if progress is not None and total and len(evidence.waiting) == dumps_before:
            done += item.size
            progress(done, total, item.file)
    if engine is not None:
        placed = [(item, _directory_host(item.parts, directories)) for item in far]
        for part in engine.read(placed, len(evidence.dumps), full, progress):
            _add(evidence, part)
    _read_waiting(evidence, full, progress, done)
    evidence.snapshots.extend(tree.snapshot("/".join(parts)) for parts, tree in sorted(evidence.trees.items()))
    return evidence


def _is_whole_file(item: Found) -> bool:
    """Whether it is a file of its own that nobody has read yet."""
    return item.archive is None and item.data is None


def read_items(items: Sequence[tuple[Found, str | None]], keep: int | None, evidence: Evidence) -> None:
    """What some files with their nodes say; of every dump `keep` entries at most."""
    for item, node in items:
        _read(item, node, evidence)
    waiting, evidence.waiting = evidence.waiting, []
    for item, node, form in waiting:
        _add_dump(item, node, dump_of(Work(item, node, form, keep)), evidence)


def _add(whole: Evidence, part: Evidence) -> None:
    """Put what was read elsewhere to the rest."""
    for field_of in fields(Evidence):
        mine, new = getattr(whole, field_of.name), getattr(part, field_of.name)
        if isinstance(mine, list):
            mine.extend(new)
        elif isinstance(mine, int):
            setattr(whole, field_of.name, mine + new)
        else:
            mine.update(new)


# ---- archives --------------------------------------------------------------------------------------------------------


def _open_archives(found: list[Found], evidence: Evidence) -> list[Found]:
    """Archives replaced by what they hold. Only hangscope's own manifests stay in memory; the rest is read later."""
    out: list[Found] = []
    for item in found:
        try:
            start = item.head(find_files.START)
            # a pickle is told by its first bytes, and thousands of dumps need not be opened twice for it
            pickled = pickle_machine.is_pickle(start)
            head = start if pickled else item.head(find_files.HEAD)
        except OSError as error:  # gone since it was listed, or behind a file system that is
            evidence.gaps.append(Gap(f"file {item.file}", f"cannot be read: {error}", source=Source(item.file)))
            continue
        if not archives.recognise(start):
            item.own = not pickled and b'"hangscope.' in head
            out.append(item)
            continue
        sums: dict[str, str] = {}
        listed: list[tuple[str, bytes]] = []
        for ordinal, (name, data) in enumerate(_members(item, evidence.gaps)):
            sums[name] = hashlib.sha256(data).hexdigest()
            if name.rpartition("/")[2] == MANIFEST and b'"hangscope.incident/' in data[: find_files.HEAD]:
                listed.append((name, data))
            inside = tuple(part for part in name.split("/") if part)
            parts = (*item.parts, *inside) if inside else (*item.parts[:-1], item.name.removesuffix(".gz"))
            if find_files.wanted(parts[-1]):
                shown = f"{item.file}!{name}" if name else item.file
                kept = data if b'"hangscope.' in data[: find_files.HEAD] else None
                out.append(Found(shown, parts, len(data), data=kept, archive=item, ordinal=ordinal))
        for name, data in listed:
            evidence.gaps.extend(_differences(item, name, data, sums))
    return out


def _differences(item: Found, name: str, raw: bytes, sums: Mapping[str, str]) -> Iterator[Gap]:
    """What in a bundle is not what its manifest lists: changed on the way, or missing."""
    try:
        value = bounded_json.loads(raw)
    except ValueError:
        return
    folder = name.removesuffix(MANIFEST)
    entries = value.get("files") if isinstance(value, Mapping) else None
    for file, entry in list(entries.items())[:_MOST_LISTED] if isinstance(entries, Mapping) else ():
        sha = entry.get("sha256") if isinstance(entry, Mapping) else None
        found = sums.get(f"{folder}{file}")
        if isinstance(sha, str) and found != sha:
            why = "listed in its manifest and not there" if found is None else "not the file that its manifest lists"
            yield Gap(f"{file[:200]} in {item.file}", f"{why} (checksum)", source=Source(item.file, file[:200]))


def _members(item: Found, gaps: list[Gap]) -> Iterator[tuple[str, bytes]]:
    try:
        with item.open() as stream:
            yield from archives.members(stream, file=item.file, gaps=gaps)
    except DamagedError as error:
        gaps.append(Gap(f"archive {item.file}", error.reason, source=Source(item.file)))
    except OSError as error:
        gaps.append(Gap(f"archive {item.file}", f"cannot be read: {error}", source=Source(item.file)))


def _with_content(found: list[Found]) -> Iterator[Found]:
    """Each file once its bytes can be had: plain files as they are, members as their archive is read again."""
    packed: dict[str, tuple[Found, dict[int, Found]]] = {}
    for item in found:
        if item.archive is None:
            yield item
        else:
            packed.setdefault(item.archive.file, (item.archive, {}))[1][item.ordinal] = item
    for _, (archive, wanted) in sorted(packed.items()):
        for ordinal, (_, data) in enumerate(_members(archive, [])):
            if ordinal in wanted:
                wanted[ordinal].data = data
                yield wanted[ordinal]
                wanted[ordinal].data = None


# ---- which attempt, which host ---------------------------------------------------------------------------------------


def _own_json(item: Found, schema: str) -> Mapping[str, Any] | None:
    """The file's JSON where it is one of hangscope's own of that schema."""
    if item.size > JSON_LIMIT or (item.archive is not None and item.data is None) or item.own is False:
        return None
    if pickle_machine.is_pickle(item.head(3)) or f'"hangscope.{schema}/'.encode() not in item.head(find_files.HEAD):
        return None
    value = _json(item)
    return value if isinstance(value, Mapping) and _schema(value).startswith(f"hangscope.{schema}/") else None


def _schema(value: Mapping[str, Any]) -> str:
    return str(value.get("schema", ""))


def _newest_incident(found: list[Found], evidence: Evidence) -> list[Found]:
    """Where manifests of several incidents lie side by side, the newest alone."""
    manifests: list[tuple[tuple[str, ...], Manifest]] = []
    for item in found:
        value = _own_json(item, "incident")
        if value is not None:
            manifests.append((item.parts[:-1], incident_files.read_manifest(value, item.file)))
    if not manifests:
        return found
    newest = max(manifests, key=lambda m: (m[1].captured_at_ns or 0, m[1].attempt or "", m[0]))[1]
    ours = [where for where, manifest in manifests if _same_incident(manifest, newest)]
    others = [where for where, manifest in manifests if not _same_incident(manifest, newest)]
    evidence.manifests = [manifest for _, manifest in manifests if _same_incident(manifest, newest)]
    for where in sorted(others):
        name = "/".join(where)
        why = "of another attempt or job; the newest one is used"
        evidence.gaps.append(Gap(f"incident {name}", why, source=Source(name)))
    return [item for item in found if _depth(item.parts, ours) >= _depth(item.parts, others)]


def _same_incident(one: Manifest, newest: Manifest) -> bool:
    if (one.job, one.attempt) != (newest.job, newest.attempt):
        return False
    if one.captured_at_ns is None or newest.captured_at_ns is None:
        return True
    return newest.captured_at_ns - one.captured_at_ns <= SAME_INCIDENT_NS


def _depth(parts: tuple[str, ...], tops: list[tuple[str, ...]]) -> int:
    """How deep the innermost of these directories lies that a path is under; -1 where it is under none."""
    return max((len(top) for top in tops if parts[: len(top)] == top), default=-1)


def _host_directories(found: list[Found], evidence: Evidence) -> dict[tuple[str, ...], str]:
    """Directories that stand for a host: those with a node.json, and ``nodes/<host>`` of an incident."""
    hosts: dict[tuple[str, ...], str] = {}
    for item in found:
        for index, part in enumerate(item.parts[:-2]):
            if part == "nodes" and evidence.manifests:
                hosts.setdefault(item.parts[: index + 2], item.parts[index + 1])
        value = _own_json(item, "node")
        if value is not None and isinstance(value.get("node"), str):
            hosts[item.parts[:-1]] = value["node"]
    return hosts


def _directory_host(parts: tuple[str, ...], hosts: Mapping[tuple[str, ...], str]) -> str | None:
    for end in range(len(parts) - 1, 0, -1):
        if parts[:end] in hosts:
            return hosts[parts[:end]]
    return None


# ---- one file --------------------------------------------------------------------------------------------------------


def _read(item: Found, node: str | None, evidence: Evidence) -> None:
    """Recognise one file and put what it says into the evidence. Files that are nothing known are passed over."""
    copied = sysfs.place_of(item.parts) if item.size <= sysfs.MAX_BYTES else None
    if copied is not None and _read_sysfs(item, node, copied, evidence):
        return
    if not item.size:
        _read_empty(item, node, evidence)
        return
    try:
        start = item.head(find_files.START)
        if pickle_machine.is_pickle(start) and (form := dump_file.recognise(start)):
            _read_dump(item, node, form, evidence)
            return
        head = item.head(find_files.HEAD)
        if ras_answers.recognise(head) and item.size <= JSON_LIMIT:
            evidence.answers.append(ras_answers.read(item.read(), item.file))
            # People paste a log and an answer into one file.
            if not evidence.answers[-1].is_json and (text := _text_of(item, node, head)).useful:
                evidence.texts.append(text)
        elif blackbox_file.recognise(head):
            _read_box(item, evidence)
        elif form := dump_file.recognise(head):
            _read_dump(item, node, form, evidence)
        elif head.lstrip()[:1] in (b"{", b"[") and item.size <= JSON_LIMIT and _read_json(item, node, evidence):
            return
        elif pickle_machine.is_pickle(head) or (
            find_files.named_as_dump(item.name) and pickle_machine.is_text_pickle(head)
        ):
            if find_files.named_as_dump(item.name):
                _refuse(item, node, "a pickle that is no flight recorder dump: it is not opened", evidence)
            else:
                evidence.looked_at.append(f"{item.file} (a pickle of something else)")
        elif packed := find_files.packed_with(head):
            why = f"packed with {packed}, which is not opened: unpack it, or pack it with gzip"
            evidence.gaps.append(Gap(f"file {item.file}", why, source=Source(item.file)))
            evidence.looked_at.append(f"{item.file} (packed with {packed})")
        elif find_files.looks_like_text(head) or find_files.is_utf16(head):
            _read_text(item, node, head, evidence)
        elif find_files.named_as_dump(item.name):
            _refuse(item, node, "it is neither a pickle nor JSON", evidence)
        else:
            evidence.looked_at.append(f"{item.file} (no text)")
    except OSError as error:
        evidence.gaps.append(Gap(f"file {item.file}", f"cannot be read: {error}", source=Source(item.file)))


def _read_sysfs(
    item: Found, node: str | None, place: tuple[tuple[str, ...], tuple[str, ...]], evidence: Evidence
) -> bool:
    """Whether the file is what its path says; a log may lie in a folder of such a name too."""
    try:
        raw = item.head(sysfs.MAX_BYTES)
    except OSError:
        return True  # some counters of a live tree cannot be read, and a copy of them has no bytes
    tree = evidence.trees.get(place[0], sysfs.Tree(node, place[0]))
    known = sysfs.add(tree, place[1], raw)
    if known:
        evidence.trees[place[0]] = tree
    return known


def _text_of(item: Found, node: str | None, head: bytes) -> TextFile:
    text = TextFile(item.file, item.parts, node)
    if find_files.is_utf16(head) and item.size <= JSON_LIMIT:
        data = item.read().decode("utf-16", "replace").encode()
        text.read(io.BytesIO(data), len(data))
    elif item.size == len(head) < find_files.HEAD:
        text.read(io.BytesIO(head), item.size)
    else:
        with item.open() as stream:
            text.read(stream, item.size)
    return text


def _read_text(item: Found, node: str | None, head: bytes, evidence: Evidence) -> None:
    text = _text_of(item, node, head)
    evidence.gaps.extend(text.gaps)
    if text.useful:
        evidence.texts.append(text)
    elif find_files.named_as_dump(item.name):
        _refuse(item, node, "it is neither a pickle nor JSON", evidence)
    elif text.is_rank_log:
        evidence.texts.append(text)
    else:
        evidence.looked_at.append(f"{item.file} ({text.lines} lines of text)")


def _refuse(item: Found, node: str | None, why: str, evidence: Evidence) -> None:
    """A dump, or what calls itself one, that cannot be read: its rank is known where the name says it."""
    rank = rank_of_dump(item.file)
    evidence.refusals += 1
    if rank is not None:
        evidence.refused.add(rank)
    evidence.gaps.append(Gap(f"dump {item.file}", why, rank, node, Source(item.file)))


def _read_empty(item: Found, node: str | None, evidence: Evidence) -> None:
    """A log that says nothing is that of a rank that never spoke; a dump without a byte was never finished."""
    kind = find_files.empty_kind(item.name)
    if kind == "log":
        evidence.texts.append(TextFile(item.file, item.parts, node))
    elif kind == "dump":
        _refuse(item, node, "the file is empty", evidence)


def _read_box(item: Found, evidence: Evidence) -> None:
    """A black box; of a process that may still run, hence twice where it is a file of its own."""
    try:
        if item.size > MAX_BYTES:
            raise DamagedError(f"it has {item.size >> 20} MiB, more than any black box")
        data = item.read()
        later = item.read() if item.path is not None else None
        box, gaps = blackbox_file.read(data, Source(item.file), later)
    except DamagedError as error:
        evidence.gaps.append(Gap(f"black box {item.file}", error.reason, source=Source(item.file)))
        return
    evidence.boxes.append(box)
    evidence.gaps.extend(gaps)


def _read_dump(item: Found, node: str | None, form: str, evidence: Evidence) -> None:
    if item.size > LIMITS.input_bytes:
        _refuse(item, node, f"it has {item.size >> 20} MiB, more than any real dump", evidence)
    elif _is_whole_file(item):
        evidence.waiting.append((item, node, form))
    else:
        _add_dump(item, node, dump_of(Work(item, node, form)), evidence)


def _add_dump(item: Found, node: str | None, dump: dump_file.RawDump | str, evidence: Evidence) -> None:
    if isinstance(dump, str):
        _refuse(item, node, dump, evidence)
    else:
        evidence.dumps.append(dump)
        evidence.paths[item.file] = item.parts


def _read_waiting(evidence: Evidence, full: bool, progress: Progress | None, done: int) -> None:
    """Read the dumps that were put off; `done` bytes of other files were read before."""
    waiting, evidence.waiting = evidence.waiting, []
    keep = None if full else ring_history.share(len(waiting) + len(evidence.dumps))
    total = done + sum(item.size for item, _, _ in waiting)
    work = [Work(item, node, form, keep) for item, node, form in waiting]
    for one, dump in zip(work, parallel.dumps_of(work), strict=True):
        _add_dump(one.item, one.node, dump, evidence)
        done += one.item.size
        if progress is not None:
            progress(done, total, one.item.file)


def _json(item: Found) -> Any:
    try:
        return bounded_json.loads(item.read())
    except ValueError:
        return None


def _read_json(item: Found, node: str | None, evidence: Evidence) -> bool:
    """Whether the file was JSON and is dealt with. False: it may still be a log that begins with a brace."""
    try:
        value = bounded_json.loads(item.read())
    except bounded_json.TooMuch as error:
        evidence.gaps.append(Gap(f"file {item.file}", f"JSON that is not read: {error}", source=Source(item.file)))
        return True
    except ValueError as error:
        if b'"hangscope.' in item.head(find_files.HEAD):  # one of ours that is broken is evidence that is missing
            evidence.gaps.append(Gap(f"file {item.file}", f"not read: broken JSON ({error})", source=Source(item.file)))
            return True
        return False
    if isinstance(value, Mapping):
        schema = _schema(value)
        if "culprits" in value or schema.startswith(("hangscope.diagnosis/", "hangscope.incident/")):
            return True  # a truth or an earlier verdict is no evidence; manifests were read before
        if schema.startswith("hangscope.node/"):
            evidence.nodes.append(incident_files.read_node(value, item.file))
        elif schema.startswith("hangscope.sites/"):
            evidence.sites.extend(call_sites.read(value, item.file))
        elif port_counters.is_snapshot(value):
            evidence.snapshots.append(port_counters.read(value, item.file, node, item.parts))
        elif error_files.is_error_file(value):
            evidence.errors.append((error_files.read_error_file(value), item.file, node, item.parts))
        elif rosters.is_roster(value):
            evidence.statements.extend(rosters.read_roster(value, item.file))
        return True
    if rosters.is_roster(value):
        evidence.statements.extend(rosters.read_roster(value, item.file))
    return value is not None
