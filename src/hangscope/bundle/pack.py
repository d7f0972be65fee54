"""The one file that a support ticket needs: an incident, or any folder of evidence, with verdict and ticket.

A bundle is a plain .tar.gz with one folder in it. It is streamed: memory does not depend on the size of the evidence.
The manifest comes last, because only then every checksum is known; a bundle without one was cut short.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

from hangscope.__about__ import __version__
from hangscope.bundle.aliases import Aliases
from hangscope.bundle.archive_writer import ArchiveWriter
from hangscope.bundle.evidence_files import EvidenceFiles, evidence_files, holds_files
from hangscope.bundle.parallel_gzip import GzipWriter
from hangscope.bundle.redact import learn_names
from hangscope.bundle.redact.redact_file import CannotRedact, Keep, Redactor
from hangscope.bundle.redact.rewrite_pickle import is_pickle
from hangscope.bundle.shrink import Involved, Item, Plan, item, shorten, shrink
from hangscope.bundle.unpack import members
from hangscope.errors import DamagedError, InputError
from hangscope.incident import manifest as manifests
from hangscope.incident.layout import (
    NODE_FILE,
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
from hangscope.safeio.evidence_names import Known
from hangscope.safeio.held import held_trees, status_of
from hangscope.safeio.limited import limited
from hangscope.safeio.safe_files import head_of, make_folder, new_file, open_file

Progress = Callable[[int, int, str], None]
"""`progress(done, total, what)`, in bytes of evidence."""
Files = Mapping[str, Mapping[str, Any]]
"""Name in the bundle → size and checksum."""
REDACTION_SCHEMA = "hangscope.redaction/1"

REMAINS = (
    "passwords without a name or a place that says so",
    "hexadecimal keys without a name: they look like hashes",
    "random strings of fewer than 20 letters without a name, and some longer ones of one case",
    "values that a person made up behind a name that may mean anything: my_key",
    "what was encoded twice: base64 of something compressed, hexadecimal of a password",
)
REMAINS_OF_ALL_LINES = (
    *REMAINS,
    "the rest of a secret that a terminal, a pager or a table broke over several lines",
    "values below their names in columns of a table, or drawn below a line of code",
    "names of people and accounts where no path, variable or command says that they are users",
    "names of projects, models and data in running text",
    "secrets inside pictures, audio and programs' own binary formats",
)
REMAINS_OF_EVIDENCE = (
    "inside a line that is evidence itself, such as the message of an exception: " + "; ".join(REMAINS),
    "names of source files, functions, modules and process groups",
)
"""What redaction does not find, by kind: the summary says it, because nobody should believe that nothing is left."""

_IN_MEMORY = 8 << 20
_SAMPLE = 256 << 10
_PASSES = 12
_PAGE_SHARE = 8
"""Of a bundle of limited size the page may take this part."""
_LEFT_OUT = "left out of the bundle: "
_REPORTS = (VERDICT_JSON, VERDICT_TEXT, VERDICT_PAGE, TICKET)


@dataclass(frozen=True, slots=True)
class Reports:
    """What is said about the evidence, in words that were redacted before they were set: a line that was broken to fit
    a terminal, a page or a ticket cannot be redacted any more."""

    json: str
    text: str
    page: Callable[[], str]
    ticket: Callable[[Files], str]
    """Given the files that are in the bundle."""


class Cleaner:
    """Redacts what a report is made of: called with a name or a sentence, `host` with a host's name."""

    def __init__(self, redactor: Redactor | None) -> None:
        self._redactor = redactor

    def __call__(self, text: str) -> str:
        return self._through(self._redactor.text, text) if self._redactor is not None else text

    def host(self, name: str) -> str:
        return self._through(self._redactor.host, name) if self._redactor is not None else name

    @staticmethod
    def _through(clean: Callable[[bytes], bytes], text: str) -> str:
        return clean(as_bytes(text)).decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Options:
    """How to make a bundle. What is said about the evidence is given, because judging is not this layer's part."""

    redact: bool = True
    pseudonymise: bool = False
    keep: Keep | None = None
    """Only evidence: writes the lines of a file that may stay. None keeps every line, redacted."""
    map_file: Path | None = None
    """Where aliases are kept; beside the bundle where not said. Never inside it."""
    max_bytes: int | None = None
    involved: Involved = field(default_factory=Involved)
    reports: Callable[[Cleaner], Reports] | None = None
    """Given what redacts a name or a sentence."""
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
    """Files that could not be read, or not be redacted safely, or that no reader knows."""
    lines_left_out: Mapping[str, int]
    """Log → how many of its lines are no evidence."""
    map_file: Path | None


class _Names(NamedTuple):
    """What the evidence gives away."""

    users: set[bytes]
    hosts: set[str]


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
    with held_trees([source]):
        return _write(source, target, options, progress, known)


def _write(source: Path, target: Path, options: Options, progress: Progress | None, known: Known | None) -> Bundle:
    without = {target} if options.map_file is None else {target, options.map_file}
    evidence = evidence_files(source, without, known)
    heads = {name: head_of(path, 2048) for name, path in evidence.files.items()}
    items = [item(name, _size(path), heads[name]) for name, path in evidence.files.items()]
    names = _learn(evidence, {name for name, head in heads.items() if is_pickle(head)}, options, progress)
    heads.clear()
    make_folder(target.parent, wary=False)
    # What is not redacted is for its owner's eyes; the rest is as readable as the umask says.
    with new_file(target.parent, target.name, 0o666 if options.redact else 0o600) as (out, temporary):
        top = options.name or safe_name(_stem(target))
        plan = Plan()
        for _ in range(_PASSES):
            out.seek(0)
            out.truncate()
            packed = _Pass(evidence, _redactor(names, options), plan, options)
            size = packed.write(out, top, _counting(items, progress))
            if options.max_bytes is None or size <= options.max_bytes:
                break
            plan = _smaller(items, packed, size, plan, options, source)
        else:
            raise InputError(f"{source}: no bundle of at most {options.max_bytes} bytes could be made")
        out.close()  # a full disk may be said only now
        os.replace(temporary, target)
    packed.save_aliases()
    return Bundle(
        path=target,
        size=size,
        manifest=packed.manifest,
        replaced=packed.replaced(),
        dropped=_by_reason(plan),
        left_out=(*evidence.missing, *packed.left_out),
        lines_left_out=packed.lines_left_out(),
        map_file=options.map_file,
    )


def _size(path: Path) -> int:
    try:
        return status_of(path).st_size
    except OSError:  # exchanged, or gone: the pass that packs will say so
        return 0


def map_beside(target: Path) -> Path:
    """Where the aliases of a bundle are kept, unless somebody says otherwise."""
    return target.with_name(_stem(target) + ".aliases.json")


def _stem(target: Path) -> str:
    return target.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")


class _Pass:
    """One pass over the evidence. With a limit on the size there may be several, each with less in it."""

    def __init__(self, evidence: EvidenceFiles, redactor: Redactor | None, plan: Plan, options: Options) -> None:
        self._evidence = evidence
        self._redactor = redactor
        self._plan = plan
        self._options = options
        self.packed: dict[str, float] = {}
        """Name → about how many bytes it takes, where there is a limit."""
        self.left_out: list[Missing] = []
        self.manifest = evidence.manifest

    def write(self, out: IO[bytes], top: str, progress: Callable[[str, int], None]) -> int:
        """Write the whole bundle; returns its size."""
        names: dict[str, str] = {}
        modified: dict[str, float] = {}
        with GzipWriter(out) as packer:
            archive = ArchiveWriter(packer, top)
            for name, path in self._evidence.files.items():
                progress(name, 0)
                if name in self._plan.drop or self._is_made_anew(name):
                    continue
                try:
                    with self._opened(name, path) as source:
                        if self._redactor is not None and holds_files(source):
                            self._add_archive(archive, name, path, progress)
                            continue
                        modified[name] = os.fstat(source.fileno()).st_mtime
                        names[name] = self._add(archive, name, source, modified[name], progress)
                except (CannotRedact, DamagedError) as reason:
                    self.left_out.append(Missing(name, f"{_LEFT_OUT}{reason}"))
                except OSError as error:  # of this file: whoever cannot be written to is not asked here
                    self.left_out.append(Missing(name, f"cannot be read: {error.strerror}"))
            stale = [Stale(names[old.file], old.why) for old in stale_dumps(modified) if old.file in names]
            self._finish(archive, tuple(stale))
        return packer.written

    def _opened(self, name: str, path: Path) -> IO[bytes]:
        most = self._evidence.counted.get(name)
        return open_file(path) if most is None else limited(open_file(path), most)

    def replaced(self) -> dict[str, int]:
        return dict(sorted(self._redactor.counts.items())) if self._redactor else {}

    def lines_left_out(self) -> dict[str, int]:
        return dict(self._redactor.lines_left_out) if self._redactor else {}

    def save_aliases(self) -> None:
        """Write the map of aliases, where there are any."""
        if self._redactor is not None and self._redactor.aliases is not None and self._options.map_file is not None:
            self._redactor.aliases.save(self._options.map_file)

    def _is_made_anew(self, name: str) -> bool:
        """Whether a file of an earlier report is replaced. A page that is done cannot be redacted, and goes; with
        aliases the others go too: a host's name in a sentence cannot be found any more."""
        if self._options.reports is not None and name in _REPORTS:
            return True
        if self._redactor is None:
            return False
        file = name.rpartition("/")[2]
        return file == VERDICT_PAGE or (file in _REPORTS and self._redactor.aliases is not None)

    def _add(
        self, archive: ArchiveWriter, name: str, source: IO[bytes], mtime: float, progress: Callable[[str, int], None]
    ) -> str:
        inside = self._redactor.name(name) if self._redactor else name
        with (
            tempfile.SpooledTemporaryFile(_IN_MEMORY) as shorter,
            tempfile.SpooledTemporaryFile(_IN_MEMORY) as clean,
        ):
            reading: IO[bytes] = source
            if name in self._plan.shorten and shorten(source, shorter):
                shorter.seek(0)
                reading = shorter
            if self._redactor is not None:
                self._redactor.file(reading, clean, name)
                reading = clean
            size = reading.seek(0, os.SEEK_END)
            reading.seek(0)
            if self._options.max_bytes is not None:
                sample = reading.read(_SAMPLE)
                reading.seek(0)
                self.packed[name] = size * len(zlib.compress(sample, 1)) / max(1, len(sample)) + 128
            return archive.add(inside, reading, size, mtime, lambda done: progress(name, done))

    def _add_archive(self, archive: ArchiveWriter, name: str, path: Path, progress: Callable[[str, int], None]) -> None:
        """A tar that somebody put among the evidence: its files are redacted one by one, into a folder of its name."""
        folder = re.sub(r"\.(?:tgz|tar|tar\.gz|gz)$", "", name) or name
        for member, content in members(path):
            inside = f"{folder}/{member.name}"
            with tempfile.SpooledTemporaryFile(_IN_MEMORY) as source:
                while data := content.read():
                    source.write(data)
                source.seek(0)
                try:
                    self._add(archive, inside, source, member.mtime, progress)
                except CannotRedact as reason:
                    self.left_out.append(Missing(inside, f"{_LEFT_OUT}{reason}"))

    def _finish(self, archive: ArchiveWriter, stale: tuple[Stale, ...]) -> None:
        """What is said about the evidence, what redaction did, and the manifest."""
        now = time.time()
        if self._options.reports is not None:
            reports = self._options.reports(Cleaner(self._redactor))
            archive.add_bytes(VERDICT_JSON, as_bytes(reports.json), now)
            archive.add_bytes(VERDICT_TEXT, as_bytes(reports.text), now)
            self._add_page(archive, reports.page(), now)
            archive.add_bytes(TICKET, as_bytes(reports.ticket(dict(archive.files))), now)
        described = self._described(stale)
        value = self._clean_json(described.to_json())
        if self._redactor is not None:
            archive.add_bytes(REDACTION, as_json(self._summary(value["gaps"])).encode(), now)
        value["files"] = dict(sorted(archive.files.items()))
        raw = as_json(value).encode()
        self.manifest = manifests.parse(raw)
        archive.finish(raw, now)

    def _add_page(self, archive: ArchiveWriter, drawn: str, now: float) -> None:
        page = drawn.encode("utf-8", "backslashreplace")
        limit = self._options.max_bytes
        if limit is None or len(zlib.compress(page, 1)) < limit // _PAGE_SHARE:
            archive.add_bytes(VERDICT_PAGE, page, now)
        else:
            self.left_out.append(Missing(VERDICT_PAGE, f"{_LEFT_OUT}evidence comes first in a small one"))

    def _described(self, stale: tuple[Stale, ...]) -> Manifest:
        """The manifest but for the files' checksums."""
        given = self._evidence.manifest
        dropped = (
            Missing(f"{count} files: {what}", "left out to keep the bundle small")
            for what, count in _by_reason(self._plan).items()
        )
        made = {
            "made_at": manifests.now(),
            "redacted": self._redactor is not None,
            "pseudonymised": self._options.pseudonymise,
            "only_evidence": self._options.keep is not None,
            "shortened": sorted(self._plan.shorten),
            "dropped": sorted(self._plan.drop),
        }
        return replace(
            given,
            files={},
            versions={**given.versions, "hangscope": __version__},
            gaps=(*given.gaps, *self.left_out, *self._missing_lines(), *dropped),
            stale=stale,
            extra={**given.extra, "bundle": made},
        )

    def _missing_lines(self) -> tuple[Missing, ...]:
        """The gap that says how many lines of logs stayed where they were."""
        left = self.lines_left_out()
        if not left:
            return ()
        logs = "1 log" if len(left) == 1 else f"{len(left):,} logs"
        return (
            Missing(f"{sum(left.values()):,} lines of {logs}", f"{_LEFT_OUT}not evidence; --all-lines includes them"),
        )

    def _summary(self, gaps: list[Any]) -> dict[str, Any]:
        assert self._redactor is not None
        left = [(self._redactor.name(name), count) for name, count in self.lines_left_out().items()]
        return {
            "schema": REDACTION_SCHEMA,
            "replaced": self.replaced(),
            "pseudonymised": self._options.pseudonymise,
            "only_evidence": self._options.keep is not None,
            "not_looked_for": list(REMAINS_OF_ALL_LINES if self._options.keep is None else REMAINS_OF_EVIDENCE),
            "left_out": [gap["what"] for gap in gaps if gap["why"].startswith(_LEFT_OUT)],
            "lines_left_out": dict(left),
        }

    def _clean_json(self, value: Any) -> Any:
        """Redacted as a text, because a name says what its value is; where that breaks it, string by string."""
        if self._redactor is None:
            return value
        value = self._redactor.first_lines(value)
        try:
            return json.loads(self._redactor.text(as_bytes(as_json(value))))
        except ValueError:
            return self._redactor.strings(value)


def cleaner_for(sources: Sequence[Path], keep: Keep) -> Cleaner:
    """What redacts reports about this evidence as a bundle of it would: users are learnt from all of it."""
    options = Options(keep=keep)
    users: set[bytes] = set()
    for source in sources:
        with held_trees([source]):
            evidence = evidence_files(source, set(), None)
            pickled = {name for name, path in evidence.files.items() if is_pickle(head_of(path, 2048))}
            users |= _learn(evidence, pickled, options, None).users
    return Cleaner(Redactor(users, None, keep))


def _redactor(names: _Names, options: Options) -> Redactor | None:
    if not options.redact:
        return None
    aliases = Aliases.load(options.map_file, names.hosts) if options.map_file else None
    return Redactor(names.users, aliases, options.keep)


def _learn(evidence: EvidenceFiles, pickled: set[str], options: Options, progress: Progress | None) -> _Names:
    """The users and, where they get aliases, the hosts that the evidence names."""
    names = _Names(set(), set())
    if not options.redact:
        return names
    if options.pseudonymise:
        names.hosts.update(learn_names.hosts_of_names(evidence.files))
        names.hosts.update(learn_names.hosts_of_manifest(json.dumps(evidence.manifest.to_json()).encode()))
    for index, (name, path) in enumerate(evidence.files.items()):
        if progress is not None:
            progress(index, len(evidence.files), f"looking for names: {name}")
        try:
            for piece in learn_names.pieces(path):
                if name in pickled:  # its strings are names of files and functions
                    names.users.update(learn_names.home_owners(piece))
                    continue
                names.users.update(learn_names.users_in(piece))
                if options.pseudonymise:
                    names.hosts.update(_hosts_of(name, piece))
        except OSError:
            continue  # the pass that packs will say so
    return names


def _hosts_of(name: str, piece: bytes) -> set[str]:
    """The host names that a piece of a file gives away; those of a report are in the evidence, its words are not."""
    file = name.rpartition("/")[2]
    if file in _REPORTS or file.endswith((".html", ".htm", ".js", ".py", ".md")):
        return set()
    if file == NODE_FILE:
        return learn_names.hosts_of_node(piece)
    return learn_names.hosts_in(piece)


def _counting(items: list[Item], progress: Progress | None) -> Callable[[str, int], None]:
    total = sum(one.size for one in items)
    done = 0

    def count(name: str, size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(min(done, total), total, name)

    return count


def _smaller(items: list[Item], last: _Pass, size: int, plan: Plan, options: Options, source: Path) -> Plan:
    excess = size - (options.max_bytes or 0)
    # Thousands of files that are alike take less together than each by itself: else it would take a dozen passes.
    whole = sum(last.packed.values())
    packed = {name: share * size / whole for name, share in last.packed.items()} if whole > size else last.packed
    # A little more than needed: how much a file takes in the archive is an estimate.
    found = shrink(items, packed, excess * 1.05, options.involved, plan)
    if found is None:
        raise InputError(
            f"{source}: what the verdict rests on takes {size} bytes, more than the {options.max_bytes} allowed",
            hint="allow more, or hand the dumps over in another way",
        )
    return found


def _by_reason(plan: Plan) -> dict[str, int]:
    return dict(Counter((*plan.shorten.values(), *plan.drop.values())))
