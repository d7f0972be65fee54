"""`collect`: list every source, decide what belongs together, fetch it in parallel, write the manifest.

A second run into the same directory fetches only what is missing or has changed. What could not be had is a gap with
its reason.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from hangscope.errors import CollectError, DamagedError, InputError
from hangscope.incident import manifest as manifests
from hangscope.incident.collect import fetch_plan as planning
from hangscope.incident.collect.directories import Directory
from hangscope.incident.collect.fetch_plan import Plan, Wanted
from hangscope.incident.collect.fetch_sources import Deadline, Entry, Listing, Source, Unreachable
from hangscope.incident.layout import MANIFEST
from hangscope.incident.manifest import Manifest, Missing
from hangscope.incident.stale_files import STALE_AFTER_S
from hangscope.safeio import limits
from hangscope.safeio.held import held, held_trees, open_at, status_of
from hangscope.safeio.safe_files import Shelf, make_folder, read_file, remove_empty, remove_file
from hangscope.safeio.tar_stream import Readable
from hangscope.safeio.walk import entries, survey

Progress = Callable[[int, int, str], None]
"""`progress(done, total, what)`, in bytes."""
T = TypeVar("T")

_CHUNK = 1 << 20
_UNFINISHED = "collecting_since"
_OURS_HALF_WRITTEN = re.compile(r"\..*\.[0-9a-f]{16}\.part", re.DOTALL)
_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Errors that are ours, and not one node's."""
_CHECKSUMS = "checksums"
"""In the manifest: what a source without times said about the files it gave."""


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """How long, how often and how many at once."""

    deadline_s: float = 120.0
    """For one source, for listing and for each try to fetch."""
    retries: int = 2
    pause_s: float = 1.0
    """Before a second try; longer before each further one."""
    node_bytes: int = limits.NODE_BYTES
    """What one source may send in all."""
    parallel: int = 16
    stale_after_s: float = STALE_AFTER_S


@dataclass
class NodeResult:
    """What came of one source."""

    name: str
    fetched: int = 0
    kept: int = 0
    """Files that an earlier run had brought already."""
    bytes: int = 0
    problem: str | None = None
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Collected:
    """An incident that was brought together."""

    path: Path
    manifest: Manifest
    nodes: tuple[NodeResult, ...]
    others: tuple[str, ...]
    """Other incidents that were seen and left where they are."""

    @property
    def complete(self) -> bool:
        return not any(node.problem or node.missing for node in self.nodes)


def collect(
    out: Path,
    sources: Sequence[Source],
    *,
    options: CollectOptions | None = None,
    job: str | None = None,
    attempt: str | None = None,
    gone: Sequence[Missing] = (),
    progress: Progress | None = None,
) -> Collected:
    """Bring the sources' evidence together in the directory `out`.

    `job` and `attempt` pick one of several incidents; otherwise the newest is taken. `gone` are nodes that are known
    to exist and cannot be asked. Raises CollectError where nothing at all could be had.
    """
    if not sources:
        raise CollectError("nothing to collect from", hint="name directories, hosts, a job, or a selector")
    with held_trees(source.path for source in sources if isinstance(source, Directory)), _alone(out):
        before = _before(out)
        work = _Work(out, sources, options or CollectOptions(), progress, before)
        plan, merged = work.run(job, attempt, before)
        if not work.has_any and not (before and before.files):
            _forget(out)
            reasons = "; ".join(f"{result.name}: {result.problem or 'nothing there'}" for result in work.results[:5])
            raise CollectError(
                f"nothing could be fetched ({reasons})", hint="`--path GLOB` names other places to look in"
            )
        manifest = _build_manifest(out, before, merged, plan, work, gone)
        return Collected(out, manifest, tuple(work.results), tuple(plan.others))


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """One collect at a time in a directory: two would clear away each other's half-written files. It is kept open."""
    kept = ExitStack()
    try:
        make_folder(out, wary=False)
        kept.enter_context(held(out))
        handle = open_at(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        kept.close()
        raise CollectError(f"{out}: cannot be written ({error.strerror or error})") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{out}: another collect is writing to it", hint="wait for it to finish") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)
        kept.close()


def _before(out: Path) -> Manifest | None:
    """What an earlier run left in `out`, which makes a directory its own before it fetches anything: interrupted at any
    moment, it can be run again."""
    try:
        before = manifests.read(out) if out.is_dir() else None
    except DamagedError as error:
        raise InputError(f"{out}: {error.reason}", hint="give a new directory with -o") from None
    if before is None:
        if out.is_dir() and entries(out):
            raise InputError(f"{out}: not empty, and not an incident", hint="give a new directory with -o")
        try:
            manifests.write(out, Manifest(extra={_UNFINISHED: manifests.now()}))
        except OSError as error:
            raise CollectError(f"{out}: cannot be written ({error.strerror or error})") from None
        return None
    for path in survey(out).half_written:
        if _OURS_HALF_WRITTEN.fullmatch(os.path.basename(path)):  # of a run that was ended in the middle of a file
            with suppress(OSError):
                remove_file(Path(path))
    return before


def _forget(out: Path) -> None:
    """Nothing came: a directory that was made for it, and holds nothing else, goes again."""
    with suppress(OSError):
        if entries(out) == [MANIFEST] and _UNFINISHED.encode() in read_file(out / MANIFEST, limits.MANIFEST_BYTES):
            remove_file(out / MANIFEST)
            remove_empty(out)


class _Work:
    """What the threads share: the sources, and what came of each."""

    def __init__(
        self,
        out: Path,
        sources: Sequence[Source],
        options: CollectOptions,
        progress: Progress | None,
        before: Manifest | None,
    ) -> None:
        known = before.extra.get(_CHECKSUMS) if before else None
        self._checksums: Mapping[str, object] = known if isinstance(known, dict) else {}
        self._out = out
        self._options = options
        self._progress = progress
        self._lock = threading.Lock()
        self._done = 0
        self._total = 0
        self.sources = sources
        self.results = [NodeResult(source.name) for source in sources]

    @property
    def has_any(self) -> bool:
        return any(result.fetched or result.kept for result in self.results)

    def run(self, job: str | None, attempt: str | None, before: Manifest | None) -> tuple[Plan, Manifest]:
        """List all sources, choose, fetch: what was planned, and what the chosen incident's parts say together."""
        at_once = max(1, min(self._options.parallel, len(self.sources)))
        with ThreadPoolExecutor(at_once, thread_name_prefix="collect") as pool:
            try:
                plan = self._plan(pool, job, attempt)
                merged = manifests.merge(plan.parts)
                _refuse_another(self._out, before, merged)
                self.fetch_all(pool, plan)
            except BaseException as error:
                for source in self.sources:
                    source.stop()
                if isinstance(error, OSError):
                    raise CollectError(f"{self._out}: cannot be written ({error.strerror or error})") from None
                raise
        return plan, merged

    def _plan(self, pool: ThreadPoolExecutor, job: str | None, attempt: str | None) -> Plan:
        listings = self.list_all(pool)
        roots = [root for found in self.each(pool, listings, self.roots) for root in found]
        chosen, others = planning.choose(roots, job=job, attempt=attempt)
        if (job or attempt) and not chosen and roots:
            raise CollectError(f"no incident of job {job or 'any'}, attempt {attempt or 'any'}, is there")
        return planning.make(self.sources, listings, chosen, others, stale_after_s=self._options.stale_after_s)

    def each(
        self, pool: ThreadPoolExecutor, listings: Mapping[int, Listing], act: Callable[[int, Listing], T]
    ) -> list[T]:
        waiting: list[Future[T]] = [pool.submit(act, index, listing) for index, listing in listings.items()]
        return [future.result() for future in waiting]

    # ---- listing -----------------------------------------------------------------------------------------------------

    def list_all(self, pool: ThreadPoolExecutor) -> dict[int, Listing]:
        waiting = {index: pool.submit(self._list, index) for index in range(len(self.sources))}
        found = {}
        for index, future in waiting.items():
            listing = future.result()
            self._tell(0, f"asked {self.sources[index].name}")
            if listing is not None:
                found[index] = listing
        return found

    def _list(self, index: int) -> Listing | None:
        def once() -> Listing:
            return self.sources[index].listing(Deadline(self._options.deadline_s))

        try:
            return self._again(once)
        except Unreachable as error:
            self.results[index].problem = str(error)
            return None
        except (OSError, ValueError, OverflowError) as error:
            self.results[index].problem = f"its file list is malformed ({error})"
            return None

    def roots(self, index: int, listing: Listing) -> list[planning.Root]:
        """The incidents at one source, by the files that describe them."""
        contents: dict[str, bytes] = {}
        room = limits.DESCRIPTIONS_BYTES

        def sink(entry: Entry, content: Readable, _: int | None) -> None:
            nonlocal room
            raw = bytearray()
            while len(raw) <= room and (data := content.read(_CHUNK)):
                raw += data
            if len(raw) > room:
                raise Unreachable(f"what describes its incidents is more than {limits.DESCRIPTIONS_BYTES} bytes")
            room -= len(raw)
            contents[entry.path] = bytes(raw)

        wanted = planning.describing(listing)
        if wanted:
            try:
                left = [entry for entry in wanted if entry.path not in contents]
                self._again(lambda: self.sources[index].fetch(left, sink, Deadline(self._options.deadline_s)))
            except Unreachable as error:
                self.results[index].problem = str(error)
        return planning.roots_of(index, self.sources[index], listing, contents)

    def _again(self, act: Callable[[], T]) -> T:
        """Try some times: a node under load answers the second time, one that is gone does not."""
        for tries in range(self._options.retries + 1):
            try:
                return act()
            except Unreachable:
                if tries == self._options.retries:
                    raise
                time.sleep(self._options.pause_s * (tries + 1))
        raise AssertionError("not reached")

    # ---- fetching ----------------------------------------------------------------------------------------------------

    def fetch_all(self, pool: ThreadPoolExecutor, plan: Plan) -> None:
        by_source: dict[int, list[Wanted]] = {}
        for wanted in plan.wanted:
            if self._is_here(wanted):
                self.results[wanted.source].kept += 1
            else:
                by_source.setdefault(wanted.source, []).append(wanted)
        self._done = 0
        self._total = sum(wanted.entry.size or 0 for some in by_source.values() for wanted in some)
        for future in [pool.submit(self._fetch, index, some) for index, some in by_source.items()]:
            future.result()

    def _is_here(self, wanted: Wanted) -> bool:
        """Whether an earlier run brought this file and it did not change since, as far as the source can say."""
        entry = wanted.entry
        try:
            state = status_of(self._out / wanted.target, follow=False)
        except OSError:
            return False
        if entry.size is None or state.st_size != entry.size:
            return False
        if entry.mtime is not None:
            return int(state.st_mtime) == entry.mtime
        return entry.checksum is not None and self._checksums.get(wanted.target) == entry.checksum

    def _fetch(self, index: int, wanted: Sequence[Wanted]) -> None:
        with Shelf(self._out) as shelf:
            self._fetch_into(shelf, index, wanted)

    def _fetch_into(self, shelf: Shelf, index: int, wanted: Sequence[Wanted]) -> None:
        result = self.results[index]
        source = self.sources[index]
        left = {item.entry.path: item for item in wanted}

        def sink(entry: Entry, content: Readable, mtime: int | None) -> None:
            item = left.get(entry.path)
            if item is None:
                return
            room = self._options.node_bytes - result.bytes
            size = self._store(shelf, item, content, mtime if mtime is not None else entry.mtime, source.name, room)
            del left[entry.path]
            result.fetched += 1
            result.bytes += size

        def once() -> None:
            source.fetch([item.entry for item in left.values()], sink, Deadline(self._options.deadline_s))
            if left:
                raise Unreachable("it was listed but not sent: removed meanwhile, or not readable")

        try:
            self._again(once)
            result.problem = None
            return
        except Unreachable as error:
            result.problem = str(error)
        except OSError as error:
            if error.errno in _LOCAL:
                raise
            result.problem = f"cannot be kept: {error.strerror or error}"
        except (ValueError, OverflowError) as error:
            # One node's nonsense costs that node's part, never the others'.
            result.problem = f"what it sends is malformed ({error})"
        result.missing = sorted(left)

    def _store(self, shelf: Shelf, item: Wanted, content: Readable, mtime: int | None, name: str, room: int) -> int:
        size = 0
        try:
            with shelf.new(item.target) as out:
                while data := _read(content):
                    out.write(data)
                    size += len(data)
                    if size > room:
                        raise Unreachable(f"it sends more than {self._options.node_bytes} bytes")
                    self._tell(len(data), f"{name}: {item.target}")
                out.flush()
                if mtime is not None and 0 < mtime <= limits.LISTED_TIME:
                    os.utime(out.fileno(), (mtime, mtime))
        except BaseException:
            self._tell(-size, name)
            raise
        return size

    def _tell(self, size: int, what: str) -> None:
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress(self._done, max(self._total, self._done), what)


def _read(content: Readable) -> bytes:
    try:
        return content.read(_CHUNK)
    except OSError as error:
        raise Unreachable(f"cannot be read: {error.strerror or error}") from None


# ---- the manifest -------------------------------------------------------------------------------------------------


def _refuse_another(out: Path, before: Manifest | None, merged: Manifest) -> None:
    """Evidence of two attempts in one directory would be read as one job that contradicts itself."""
    known = before.identity if before else (None, None)
    if planning.made_up(known[0]) and planning.made_up(merged.job) and known[1] == merged.attempt:
        return
    if (None, None) not in (known, merged.identity) and known != merged.identity:
        raise InputError(
            f"{out}: holds attempt {known[1]} of job {known[0]}, "
            f"and this is attempt {merged.attempt} of job {merged.job}",
            hint="give another directory with -o, or pick with --job and --attempt",
        )


def _build_manifest(
    out: Path, before: Manifest | None, merged: Manifest, plan: Plan, work: _Work, gone: Sequence[Missing]
) -> Manifest:
    """Describe what is there now: by the chosen incident's own words, or those of the run before."""
    asked = {source.name for source in work.sources if source.is_node} | {gap.node for gap in gone if gap.node}
    asked -= _only_of_others(work, plan)
    gaps = [*merged.gaps, *plan.gaps, *gone, *_missing(work)]
    expected = {*asked, *(merged.nodes_expected or ())}
    described = merged
    if before is not None:
        gaps = [*(gap for gap in before.gaps if gap.node is not None and gap.node not in asked), *gaps]
        expected.update(before.nodes_expected or ())
        described = before if merged.identity == (None, None) else merged
    given = replace(
        described,
        nodes_expected=tuple(sorted(expected)) or None,
        gaps=tuple(dict.fromkeys(gaps)),
        extra=_extra(described, plan),
    )
    built = manifests.build(out, given)
    # A time of collecting would be taken for one of the hang.
    built = replace(built, captured_at=described.captured_at)
    manifests.write(out, built)
    return built


def _only_of_others(work: _Work, plan: Plan) -> set[str]:
    """Sources that gave parts of nodes, and none of their own name: an address of one, a pod that reads its disk."""
    gave: dict[str, set[str]] = {}
    for wanted in plan.wanted:
        folder, _, rest = wanted.target.partition("/")
        if folder == "nodes":
            gave.setdefault(work.sources[wanted.source].name, set()).add(rest.partition("/")[0])
    return {name for name, nodes in gave.items() if not any(planning.is_one_of(node, [name]) for node in nodes)}


def _missing(work: _Work) -> Iterator[Missing]:
    """What each source did not give."""
    for source, result in zip(work.sources, work.results, strict=True):
        node = source.name if source.is_node else None
        if result.missing:
            more = f" and {len(result.missing) - 3} more" if len(result.missing) > 3 else ""
            what = f"{len(result.missing)} files of {result.name}: {', '.join(result.missing[:3])}{more}"
            yield Missing(what, result.problem or "", node)
        elif result.problem:
            yield Missing(f"evidence of {result.name}", result.problem, node)
        elif not result.fetched and not result.kept:
            yield Missing(f"evidence of {result.name}", "nothing was found there", node)


def _extra(described: Manifest, plan: Plan) -> dict[str, object]:
    """What the manifest says besides: also the checksums of files whose source knows no times, for the next run."""
    extra: dict[str, object] = {key: value for key, value in described.extra.items() if key != _UNFINISHED}
    untimed = [item for item in plan.wanted if item.entry.mtime is None and item.entry.checksum]
    if untimed:
        extra[_CHECKSUMS] = {item.target: item.entry.checksum for item in untimed}
    return extra
