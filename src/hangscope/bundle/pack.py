"""The one file that a support ticket needs: an incident, or any folder of evidence, with verdict and ticket.

A bundle is a plain .tar.gz with one folder in it. It is streamed: memory does not depend on the size of the evidence.
The manifest comes last, because only then every checksum is known; a bundle without one was cut short.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from hangscope.__about__ import __version__
from hangscope.bundle.aliases import Aliases
from hangscope.bundle.archive_writer import ArchiveWriter
from hangscope.bundle.parallel_gzip import GzipWriter
from hangscope.bundle.redact import learn_names
from hangscope.bundle.redact.redact_file import Keep, LeftOut, Redactor
from hangscope.bundle.redact.rewrite_pickle import is_pickle
from hangscope.bundle.shrink import Involved, Item, Plan, item, shorten, shrink
from hangscope.bundle.unpack import members
from hangscope.errors import DamagedError, InputError, NotFoundError
from hangscope.incident import manifest as manifests
from hangscope.incident.layout import (
    MANIFEST,
    REDACTION,
    TICKET,
    VERDICT_JSON,
    VERDICT_PAGE,
    VERDICT_TEXT,
    as_bytes,
    as_json,
    safe_name,
)
from hangscope.incident.manifest import Manifest, Missing
from hangscope.incident.stale_files import Stale, stale_dumps
from hangscope.safeio import limits
from hangscope.safeio.evidence_names import Known, bounded, is_evidence, untaken
from hangscope.safeio.file_magic import is_gzip
from hangscope.safeio.safe_files import head_of, new_file, open_file
from hangscope.safeio.tar_stream import is_header
from hangscope.safeio.walk import Survey, survey

Progress = Callable[[int, int, str], None]
"""`progress(done, total, what)`, in bytes of evidence."""
REDACTION_SCHEMA = "hangscope.redaction/1"

REMAINS = (
    "passwords without a name or a place that says so",
    "hexadecimal keys without a name: they look like hashes",
    "random strings of fewer than 20 letters without a name, and some longer ones of one case",
    "values that a person made up behind a name that may mean anything: my_key",
    "rests of tokens, addresses and words full of signs that were broken over short lines",
    "what was encoded twice: base64 of something compressed, hexadecimal of a password",
    "names of people, projects, models and data in running text",
    "secrets inside pictures, audio and programs' own binary formats",
)
REMAINS_OF_EVIDENCE = (
    "inside a line that is evidence itself, such as the message of an exception, what the whole bundle would keep: "
    + "; ".join(REMAINS[:6]),
    "names of source files, functions, modules and process groups",
)
"""What redaction does not find, by kind: the summary says it, because nobody should believe that nothing is left."""

_IN_MEMORY = 8 << 20
_SAMPLE = 256 << 10
_PASSES = 12
_PAGE_SHARE = 8
"""Of a bundle of limited size the page may take this part."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to make a bundle. Verdict and ticket are given, because judging is not this layer's part."""

    redact: bool = True
    pseudonymise: bool = False
    keep: Keep | None = None
    """Only evidence: writes the lines of a file that may stay. None keeps every line, redacted."""
    map_file: Path | None = None
    """Where aliases are kept; beside the bundle where not said. Never inside it."""
    max_bytes: int | None = None
    involved: Involved = field(default_factory=Involved)
    verdict_json: str | None = None
    verdict_text: str | None = None
    page: Callable[[Callable[[str], str]], str] | None = None
    """Writes verdict.html with what it is given applied to every name: a page that is done cannot be redacted."""
    ticket: Callable[[Manifest], str] | None = None
    """Writes ticket.md when the names and checksums of all files are known."""
    name: str | None = None
    """The bundle's one folder; from the target's name where not said."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was written."""

    path: Path
    size: int
    manifest: Manifest
    replaced: Mapping[str, int]
    """Kind of secret or name → how many were replaced."""
    dropped: Mapping[str, int]
    """What was given up to stay below the size → how many files."""
    left_out: tuple[Missing, ...]
    """Files that could not be read, or not be redacted safely."""
    map_file: Path | None


def write_bundle(
    source: Path,
    target: Path,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    known: Known | None = None,
    **changes: Any,
) -> Bundle:
    """Bundle the incident, folder or file at `source` into `target`. `changes` are single fields of `Options`; `known`
    is what `load` has seen of the same files."""
    options = replace(options or Options(), **changes)
    if options.pseudonymise:
        options = replace(options, redact=True, map_file=options.map_file or map_beside(target))
    seen = survey(source) if source.is_dir() else None
    files, untold = _files(source, seen, {target, options.map_file}, known)
    if not files:
        raise NotFoundError(f"{source}: nothing to bundle here", hint="name an incident, or a folder of dumps and logs")
    given = _given(source, seen)
    untold_gaps = (Missing(*untaken(untold, untold.total() + len(files))),) if untold else ()
    given = replace(given, gaps=(*given.gaps, *untold_gaps))
    heads = {name: head_of(path, 2048) for name, path in files.items()}
    items = [item(name, path.stat().st_size, heads[name]) for name, path in files.items()]
    pickled = {name for name, head in heads.items() if is_pickle(head)}
    users, hosts = _learn(files, pickled, given, options, progress)
    heads.clear()
    top = options.name or safe_name(target.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz"))
    plan = Plan()
    target.parent.mkdir(parents=True, exist_ok=True)
    # What is not redacted is for its owner's eyes; the rest is for whom the umask says.
    with new_file(target.parent, target.name, 0o666 if options.redact else 0o600) as (out, temporary):
        for _ in range(_PASSES):
            out.seek(0)
            out.truncate()
            aliases = Aliases.load(options.map_file, hosts) if options.map_file else None
            one = _Pass(files, given, Redactor(users, aliases, options.keep) if options.redact else None, plan, options)
            size = one.write(out, top, _counting(items, progress))
            excess = size - options.max_bytes if options.max_bytes is not None else 0
            if excess <= 0:
                break
            plan = _smaller(items, one, size, plan, options, source)
        else:
            raise InputError(f"{source}: no bundle of at most {options.max_bytes} bytes could be made")
        out.close()  # a full disk may be said only now
        os.replace(temporary, target)
    if one.redactor is not None and one.redactor.aliases is not None and options.map_file is not None:
        one.redactor.aliases.save(options.map_file)
    return Bundle(
        path=target,
        size=size,
        manifest=one.manifest,
        replaced=one.replaced(),
        dropped=_by_reason(plan),
        left_out=(*(gap for gap in given.gaps if gap.what == MANIFEST), *_skipped(seen), *untold_gaps, *one.left_out),
        map_file=options.map_file,
    )


def map_beside(target: Path) -> Path:
    """Where the aliases of a bundle are kept, unless somebody says otherwise."""
    return target.with_name(target.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz") + ".aliases.json")


class _Pass:
    """One pass over the evidence. With a limit on the size there may be several, each with less in it."""

    def __init__(
        self, files: Mapping[str, Path], given: Manifest, redactor: Redactor | None, plan: Plan, options: Options
    ) -> None:
        self._files, self._given, self.redactor, self._plan, self._options = files, given, redactor, plan, options
        self.packed: dict[str, float] = {}
        self.left_out: list[Missing] = []
        self.manifest = given

    def write(self, out: IO[bytes], top: str, told: Callable[[str, int], None]) -> int:
        """Write the whole bundle; returns its size."""
        texts = {VERDICT_JSON: self._options.verdict_json, VERDICT_TEXT: self._options.verdict_text}
        names: dict[str, str] = {}
        modified: dict[str, float] = {}
        with GzipWriter(out) as packer:
            archive = ArchiveWriter(packer, top)
            for name, path in self._files.items():
                told(name, 0)
                if name in self._plan.drop or texts.get(name) is not None or (name == TICKET and self._options.ticket):
                    continue
                if name == VERDICT_PAGE and (self._options.page or self.redactor):
                    continue
                try:
                    with open_file(path) as source:
                        if self.redactor is not None and _holds_files(source):
                            self._add_archive(archive, name, path, told)
                            continue
                        modified[name] = os.fstat(source.fileno()).st_mtime
                        names[name] = self._add(archive, name, source, modified[name], told)
                except (LeftOut, DamagedError) as reason:
                    self.left_out.append(Missing(name, f"left out of the bundle: {reason}"))
                except OSError as error:
                    self.left_out.append(Missing(name, f"cannot be read: {error.strerror}"))
            stale = [Stale(names[old.file], old.why) for old in stale_dumps(modified) if old.file in names]
            self._finish(archive, texts, tuple(stale))
        return packer.written

    def replaced(self) -> dict[str, int]:
        return dict(sorted(self.redactor.counts.items())) if self.redactor else {}

    def _add(
        self, archive: ArchiveWriter, name: str, source: IO[bytes], mtime: float, told: Callable[[str, int], None]
    ) -> str:
        inside = self.redactor.name(name) if self.redactor else name
        with (
            tempfile.SpooledTemporaryFile(_IN_MEMORY) as shorter,
            tempfile.SpooledTemporaryFile(_IN_MEMORY) as clean,
        ):
            reading: IO[bytes] = source
            if name in self._plan.shorten and shorten(source, shorter):
                shorter.seek(0)
                reading = shorter
            if self.redactor is not None:
                self.redactor.file(reading, clean, name)
                reading = clean
            size = reading.seek(0, os.SEEK_END)
            reading.seek(0)
            if self._options.max_bytes is not None:
                sample = reading.read(_SAMPLE)
                reading.seek(0)
                self.packed[name] = size * len(zlib.compress(sample, 1)) / max(1, len(sample)) + 128
            return archive.add(inside, reading, size, mtime, lambda done: told(name, done))

    def _add_archive(self, archive: ArchiveWriter, name: str, path: Path, told: Callable[[str, int], None]) -> None:
        """A tar that somebody put among the evidence: its files are redacted one by one, into a folder of its name."""
        folder = re.sub(r"\.(?:tgz|tar|tar\.gz|gz)$", "", name) or name
        for member, content in members(path):
            inside = f"{folder}/{member.name}"
            with tempfile.SpooledTemporaryFile(_IN_MEMORY) as source:
                while data := content.read():
                    source.write(data)
                source.seek(0)
                try:
                    self._add(archive, inside, source, member.mtime, told)
                except LeftOut as reason:
                    self.left_out.append(Missing(inside, f"left out of the bundle: {reason}"))

    def _finish(self, archive: ArchiveWriter, texts: Mapping[str, str | None], stale: tuple[Stale, ...]) -> None:
        now = time.time()
        for name, text in texts.items():
            if text is not None:
                archive.add_bytes(name, self._clean(text), now)
        if self._options.page is not None:
            drawn = self._options.page(lambda said: self._clean(said).decode("utf-8", "surrogateescape"))
            page = drawn.encode("utf-8", "backslashreplace")
            limit = self._options.max_bytes
            if limit is None or len(zlib.compress(page, 1)) < limit // _PAGE_SHARE:  # evidence goes first
                archive.add_bytes(VERDICT_PAGE, page, now)
            else:
                self.left_out.append(
                    Missing(VERDICT_PAGE, "left out of the bundle: evidence goes first in a small one")
                )
        given = self._given
        dropped = tuple(
            Missing(f"{count} files: {what}", "left out to keep the bundle small")
            for what, count in _by_reason(self._plan).items()
        )
        described = replace(
            given,
            versions={**given.versions, "hangscope": __version__},
            gaps=(*given.gaps, *self.left_out, *dropped),
            stale=stale,
            extra={
                **given.extra,
                "bundle": {
                    "made_at": manifests.now(),
                    "redacted": self.redactor is not None,
                    "pseudonymised": self._options.pseudonymise,
                    "only_evidence": self._options.keep is not None,
                    "shortened": sorted(self._plan.shorten),
                    "dropped": sorted(self._plan.drop),
                },
            },
        )
        if self._options.ticket is not None:
            ticket = self._options.ticket(replace(described, files=dict(archive.files)))
            archive.add_bytes(TICKET, self._clean(ticket), now)
        value = self._clean_json(replace(described, files={}).to_json())
        if self.redactor is not None:
            summary = {
                "schema": REDACTION_SCHEMA,
                "replaced": self.replaced(),
                "pseudonymised": self._options.pseudonymise,
                "only_evidence": self._options.keep is not None,
                "not_looked_for": list(REMAINS if self._options.keep is None else REMAINS_OF_EVIDENCE),
                "left_out": [gap["what"] for gap in value["gaps"] if gap["why"].startswith("left out of the bundle:")],
            }
            archive.add_bytes(REDACTION, as_json(summary).encode(), now)
        value["files"] = dict(sorted(archive.files.items()))
        raw = as_json(value).encode()
        self.manifest = manifests.parse(raw)
        archive.finish(raw, now)

    def _clean_json(self, value: Any) -> Any:
        """Redacted as a text, because a name says what its value is; where that breaks it, string by string."""
        try:
            return json.loads(self._clean(as_json(value)))
        except ValueError:
            return self._clean_strings(value)

    def _clean_strings(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._clean(value).decode("utf-8", "replace")
        if isinstance(value, (list, tuple)):
            return [self._clean_strings(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        hidden = [key for key in value if self.redactor is not None and self.redactor.secret_key(str(key).encode())]
        return {key: "[redacted:secret]" if key in hidden else self._clean_strings(value[key]) for key in value}

    def _clean(self, text: str) -> bytes:
        raw = as_bytes(text)
        return self.redactor.text(raw) if self.redactor else raw


def _given(source: Path, seen: Survey | None) -> Manifest:
    """What the incident says about itself; of a folder without a manifest, or with a broken one, little."""
    if seen is None:
        return Manifest(reason="collected")
    gaps = _skipped(seen)
    try:
        given = manifests.read(source) or Manifest(reason="collected")
    except DamagedError as error:
        return Manifest(reason="collected", gaps=(Missing(MANIFEST, error.reason), *gaps))
    return replace(given, gaps=tuple(dict.fromkeys([*given.gaps, *gaps])))


def _skipped(seen: Survey | None) -> tuple[Missing, ...]:
    return tuple(Missing(name, why) for name, why in seen.skipped) if seen is not None else ()


def _holds_files(source: IO[bytes]) -> bool:
    """Whether a file is a tar, compressed or not."""
    head = source.read(512)
    source.seek(0)
    if is_gzip(head):
        try:
            with gzip.GzipFile(fileobj=source, mode="rb") as stream:
                head = stream.read(512)
        except (OSError, zlib.error, EOFError):
            head = b""
        source.seek(0)
    return is_header(head)


def _files(
    source: Path, seen: Survey | None, without: set[Path | None], known: Known | None
) -> tuple[dict[str, Path], Counter[str]]:
    """What there is to bundle: name inside → path; and how many files are left out because nothing says that they are
    evidence. The manifest and the last redaction's summary are made anew."""
    if source.is_file():
        return {source.name: source}, Counter()
    if seen is None:
        raise NotFoundError(f"{source}: no such file or directory")
    left = {path.resolve() for path in without if path is not None}
    alike = tuple(path.name for path in left)
    plain = not (source / MANIFEST).exists() and not (source / "nodes").is_dir()
    found = [
        (name, path)
        for name, path in seen.files
        if name not in (MANIFEST, REDACTION)
        and not (name.endswith(alike) and Path(path).resolve() in left)
        and (not plain or is_evidence(name))
    ]
    kept, untold = bounded(
        found, lambda one: one[0], lambda one: head_of(one[1], limits.HEAD_BYTES), path=lambda one: one[1], known=known
    )
    return {name: Path(path) for name, path in kept}, untold


def _learn(
    files: Mapping[str, Path], pickled: set[str], given: Manifest, options: Options, progress: Progress | None
) -> tuple[set[bytes], set[str]]:
    """The users and, where they get aliases, the hosts that the evidence names."""
    users: set[bytes] = set()
    hosts: set[str] = set()
    if not options.redact:
        return users, hosts
    if options.pseudonymise:
        hosts |= learn_names.hosts_of_names(files) | learn_names.hosts_of_manifest(json.dumps(given.to_json()).encode())
    for index, (name, path) in enumerate(files.items()):
        if progress is not None:
            progress(index, len(files), f"looking for names: {name}")
        try:
            for piece in learn_names.pieces(path):
                if name in pickled:  # its strings are names of files and functions
                    users |= learn_names.home_owners(piece)
                    continue
                users |= learn_names.users_in(piece)
                if options.pseudonymise:
                    hosts |= learn_names.hosts_in(piece)
        except OSError:
            continue  # the pass that packs will say so
    return users, hosts


def _counting(items: list[Item], progress: Progress | None) -> Callable[[str, int], None]:
    total = sum(one.size for one in items)
    done = 0

    def told(name: str, size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(min(done, total), total, name)

    return told


def _smaller(items: list[Item], one: _Pass, size: int, plan: Plan, options: Options, source: Path) -> Plan:
    excess = size - (options.max_bytes or 0)
    # Thousands of files that are alike take less together than each by itself: else it would take a dozen passes.
    whole = sum(one.packed.values())
    packed = {name: share * size / whole for name, share in one.packed.items()} if whole > size else one.packed
    # A little more than needed: how much a file takes in the archive is an estimate.
    found = shrink(items, packed, excess * 1.05, options.involved, plan)
    if found is None:
        raise InputError(
            f"{source}: what the verdict rests on takes {size} bytes, more than the {options.max_bytes} allowed",
            hint="allow more, or hand the dumps over in another way",
        )
    return found


def _by_reason(plan: Plan) -> dict[str, int]:
    counts: dict[str, int] = {}
    for why in (*plan.shorten.values(), *plan.drop.values()):
        counts[why] = counts.get(why, 0) + 1
    return counts
