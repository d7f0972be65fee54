"""From what the sources list to what is fetched and where it goes.

Incidents that `hangscope run` made are brought together by job and attempt; dumps and logs of people who never used it
are laid out by node. Of several incidents the newest is taken, because its parts alone belong together.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hangscope.errors import DamagedError
from hangscope.incident import manifest as manifests
from hangscope.incident.collect.fetch_sources import Entry, Listing, Source
from hangscope.incident.layout import MANIFEST, NODE_FILE, own_files, safe_name
from hangscope.incident.manifest import Manifest, Missing
from hangscope.incident.stale_files import FUTURE_S, dump_rank
from hangscope.safeio import bounded_json, limits
from hangscope.safeio.evidence_names import is_evidence
from hangscope.safeio.member_names import Names, fitting

RUN = "run.json"
_NODES = re.compile(r"^(?P<root>(?:.*/)?)nodes/[^/]+/(?P<file>.+)$", re.DOTALL)
_NUMBER = re.compile(r"(?:^|\.)((?:hang|snapshot)-\d+)$")
_LOG = re.compile(r"\.(?:log|out|err|txt)(?:\.\d+)?(?:\.gz)?$", re.IGNORECASE)
_MADE_UP = re.compile(r"\d{8}-\d{6}-\d+")
_TOGETHER_S = 600.0
"""Nodes without a common directory notice a hang within seconds of each other, or within a collective's timeout."""


@dataclass(frozen=True, slots=True)
class Root:
    """One incident's directory at one source. `number` tells a later hang of the same attempt."""

    source: int
    path: str
    manifest: Manifest
    number: str = ""
    changed: int = 0
    problem: str = ""
    """Why its own description is not believed."""

    @property
    def key(self) -> tuple[str | None, str | None, str]:
        return (*self.manifest.identity, self.number)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file to fetch: from which source, and where it goes."""

    source: int
    entry: Entry
    target: str


@dataclass
class Plan:
    wanted: list[Wanted] = field(default_factory=list)
    gaps: list[Missing] = field(default_factory=list)
    parts: list[Manifest] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Incidents that were seen and left where they are."""


def describing(listing: Listing) -> list[Entry]:
    """The small files that say which incident a directory is; they are read before anything is chosen."""
    paths = {f"{root}{name}" for root in _roots(listing) for name in (MANIFEST, RUN)}
    return [entry for entry in listing.entries if entry.path in paths]


def roots_of(index: int, source: Source, listing: Listing, contents: Mapping[str, bytes]) -> list[Root]:
    """The incidents at one source. `contents` are the files that `describing` asked for, as far as they came."""
    changed = {entry.path: entry.mtime or 0 for entry in listing.entries}
    found = []
    for path in sorted(_roots(listing)):
        base = path.rstrip("/").rpartition("/")[2] or source.name
        number = _NUMBER.search(base)
        manifest, problem = _manifest(contents.get(f"{path}{MANIFEST}"), contents.get(f"{path}{RUN}"))
        if f"{path}{MANIFEST}" in changed and f"{path}{MANIFEST}" not in contents:
            problem = "it was listed but could not be read"
        when = max(changed.get(f"{path}{name}", 0) for name in (MANIFEST, RUN))
        found.append(Root(index, path, manifest, number[1] if number else "", when, problem))
    return found


def of_nodes(listing: Listing, is_ours: Callable[[str], bool]) -> tuple[Listing, list[str]]:
    """(without the incidents in which none of these nodes has a part, where those lie). Many jobs share a disk."""
    roots = _roots(listing)
    parts: dict[str, set[str]] = {}
    placed = []
    for entry in listing.entries:
        root = next((path for path in reversed(_above(entry.path)) if path in roots), None)
        placed.append((entry, root))
        if root is not None and (node := _node_of(entry.path[len(root) :])):
            parts.setdefault(root, set()).add(node)
    others = {root for root, nodes in parts.items() if not any(is_ours(node) for node in nodes)}
    kept = tuple(entry for entry, root in placed if root not in others)
    return replace(listing, entries=kept), sorted(others)


def is_one_of(node: str, names: Collection[str]) -> bool:
    """Whether a folder below nodes/ is of one of these nodes."""
    asked = {safe_name(spelled) for name in names for spelled in (name, name.partition(".")[0])}
    return any(each in asked for each in _spellings(node))


def _spellings(node: str) -> tuple[str, ...]:
    """A node's name, without its number where two agents run there, and without its domain."""
    return node, re.sub(r"-\d+$", "", node), node.partition(".")[0]


def choose(
    roots: Sequence[Root], *, job: str | None = None, attempt: str | None = None
) -> tuple[list[Root], list[Root]]:
    """(the parts of the incident to collect, all others)."""
    asked = [root for root in roots if job in (None, root.manifest.job) and attempt in (None, root.manifest.attempt)]
    names, _ = manifests.newest((str(position), root.manifest) for position, root in enumerate(asked))
    same = [asked[int(name)] for name in names]
    if not same:
        return [], list(roots)
    latest = max(same, key=_age)
    chosen = [root for root in same if root.key == latest.key]
    if job is None and made_up(latest.manifest.job):
        chosen = _unnamed(asked, latest)
    places = {(root.source, root.path) for root in chosen}
    return chosen, [root for root in roots if (root.source, root.path) not in places]


def made_up(job: str | None) -> bool:
    """Whether `hangscope run` had to name the job itself: then each node of it gave another name."""
    return job is not None and _MADE_UP.fullmatch(job) is not None


def _unnamed(roots: Sequence[Root], latest: Root) -> list[Root]:
    """The parts of a job that nothing named: the newest of each source, if it was captured together with the latest."""
    newest: dict[int, Root] = {}
    for root in roots:
        if made_up(root.manifest.job) and (root.source not in newest or _age(root) > _age(newest[root.source])):
            newest[root.source] = root
    together = [root for root in newest.values() if _apart_s(root, latest) <= _TOGETHER_S]
    name = min(root.manifest.job or "" for root in together)
    return [replace(root, manifest=replace(root.manifest, job=name)) for root in together]


def _age(root: Root) -> tuple[str, int]:
    return root.manifest.captured_at or "", root.changed


def _apart_s(one: Root, other: Root) -> float:
    try:
        times = [datetime.fromisoformat((r.manifest.captured_at or "").replace("Z", "+00:00")) for r in (one, other)]
    except ValueError:
        return abs(one.changed - other.changed)
    return abs((times[0] - times[1]).total_seconds())


def make(
    sources: Sequence[Source],
    listings: Mapping[int, Listing],
    chosen: Sequence[Root],
    others: Sequence[Root],
    *,
    stale_after_s: float,
) -> Plan:
    """What to fetch, and from which source."""
    planner = _Planner(sources, _latest_dump(listings), stale_after_s, Speakers(sources, listings, chosen))
    for index, entry in _from_the_future(listings):
        why = "dated in the future: that says nothing about the others' age"
        planner.add_gap(index, entry.path, why)
    for root in [root for root in (*chosen, *others) if root.problem][: limits.TREE_SKIPPED]:
        planner.add_gap(root.source, f"{root.path}{MANIFEST}", root.problem)
    for index, listing in sorted(listings.items()):
        own = {root.path for root in chosen if root.source == index}
        left = {root.path for root in others if root.source == index}
        planner.add_listing(index, listing, own, left)
    planner.add_refused()
    planner.plan.parts = [root.manifest for root in chosen]
    planner.plan.others = sorted({_name(sources, root) for root in others})
    return planner.plan


def _above(path: str) -> list[str]:
    """The directories that a file lies in, the outermost first, each with its slash."""
    ends = [at + 1 for at, char in enumerate(path) if char == "/"]
    return ["", *(path[:end] for end in ends)]


class Speakers:
    """Who speaks for which node: of `nodes/X/` X itself. One that sends another's part could accuse it.

    Nodes that share a directory list each other's parts. Of a node that is gone, which was not asked or could not be
    entered, what two others list alike is taken. A node that is asked under another name than it has (an address) is
    the one that alone lists a part, and has none by its own name.
    """

    def __init__(self, sources: Sequence[Source], listings: Mapping[int, Listing], chosen: Sequence[Root]) -> None:
        self._nodes = {index: source.name for index, source in enumerate(sources) if source.is_node}
        self._open = {index for index, listing in listings.items() if not listing.closed}
        self._listers: dict[str, set[int]] = {}
        self._files: dict[str, set[int]] = {}
        self._alike: Counter[tuple[str, int | None, int | None]] = Counter()
        for index in self._nodes.keys() & listings.keys():
            self._note(index, listings[index], {root.path for root in chosen if root.source == index})
        self._by_name: dict[str, set[int]] = {}
        for index, name in self._nodes.items():
            for spelled in (safe_name(name), safe_name(name.partition(".")[0])):
                self._by_name.setdefault(spelled, set()).add(index)
        self._with_own_name = {i for node, listers in self._listers.items() for i in listers & self._called(node)}

    def _note(self, index: int, listing: Listing, roots: set[str]) -> None:
        """Which nodes' parts a source lists."""
        for entry in listing.entries:
            inside = next((entry.path[len(way) :] for way in reversed(_above(entry.path)) if way in roots), "")
            node = _node_of(inside)
            if node:
                self._listers.setdefault(node, set()).add(index)
                self._files.setdefault(inside, set()).add(index)
                self._alike[inside, entry.size, entry.mtime] += 1

    def _called(self, node: str) -> set[int]:
        """The sources that have a node's name: with or without its domain, and a number where two agents run there."""
        return set().union(*(self._by_name.get(each, ()) for each in _spellings(node)))

    def may_give(self, index: int, entry: Entry, inside: str) -> bool:
        node = _node_of(inside)
        if not node or index not in self._nodes:
            return True
        called = self._called(node)
        if called & self._open:
            return index in called
        if self._alike[inside, entry.size, entry.mtime] > 1:
            return True
        return self._listers[node] == {index} and index not in self._with_own_name

    def is_a_copy(self, inside: str) -> bool:
        """Whether the node itself lists this file of its part: then nothing is lost where another's is left."""
        return bool(self._called(_node_of(inside)) & self._files.get(inside, set()))


def _node_of(inside: str) -> str:
    """The node whose part a file of an incident is in; empty for what is nobody's."""
    parts = inside.split("/", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "nodes" else ""


class _Planner:
    """Decides file by file; knows which names are taken."""

    def __init__(self, sources: Sequence[Source], latest_dump: int, stale_after_s: float, speakers: Speakers) -> None:
        self._speakers = speakers
        self._refused: Counter[tuple[int, str]] = Counter()
        self._sources = sources
        self._labels = _labels(sources)
        self._latest = latest_dump
        self._stale_after_s = stale_after_s
        self._names = Names()
        self._names.add(MANIFEST)
        self._parts: dict[str, int] = {}
        self.plan = Plan()

    def add_gap(self, index: int, what: str, why: str) -> None:
        self.plan.gaps.append(Missing(what, why, _node(self._sources[index])))

    def add_listing(self, index: int, listing: Listing, own: set[str], left: set[str]) -> None:
        """All files of a source. `own` are the directories of the chosen incident there, `left` those of others."""
        for entry in sorted(listing.entries, key=lambda entry: entry.path):
            root = next((path for path in reversed(_above(entry.path)) if path in own or path in left), None)
            if root is None:
                self.add_plain(index, entry, has_incident=bool(own))
            elif root in own and own_files(entry.path[len(root) :]):
                self.add_part(index, entry, entry.path[len(root) :])
        for what, why in listing.notes:
            self.add_gap(index, what, why)

    def add_part(self, index: int, entry: Entry, inside: str) -> None:
        """A file of an incident. Nodes that share a directory list the same file: it is fetched once, the newest."""
        if inside == MANIFEST:
            return
        if not self._speakers.may_give(index, entry, inside):
            self._refused[index, inside.split("/")[1]] += not self._speakers.is_a_copy(inside)
            return
        known = self._parts.get(inside)
        if known is None:
            self._parts[inside] = len(self.plan.wanted)
            kept = 2 if inside.startswith("nodes/") else 0
            self.plan.wanted.append(Wanted(index, entry, fitting(inside, self._names, kept)))
            return
        before = self.plan.wanted[known]
        if self._weight(index, entry, inside) > self._weight(before.source, before.entry, inside):
            self.plan.wanted[known] = Wanted(index, entry, before.target)

    def _weight(self, index: int, entry: Entry, inside: str) -> tuple[bool, int, int]:
        """Of a node's own part that node's word counts before any other's, and then the newest."""
        own = self._sources[index].is_node and inside.startswith(f"nodes/{safe_name(self._sources[index].name)}/")
        return own, entry.mtime or 0, entry.size or 0

    def add_plain(self, index: int, entry: Entry, *, has_incident: bool) -> None:
        """A file outside any incident: of a node by what it is, of a directory where it lay."""
        if not is_evidence(entry.path):
            return
        if entry.found == "default":
            # Where the recorder ran, PyTorch's dumps are in the incident; what is elsewhere is from before.
            if has_incident:
                return
            behind = self._latest - entry.mtime if entry.mtime is not None else 0
            if behind > self._stale_after_s:
                why = f"left where it is: {behind / 3600:.1f} h older than the newest dump, so from an earlier run"
                self.add_gap(index, entry.path, why)
                return
        # Readers pass hidden folders over, and dumps lie in ~/.cache.
        inside = "/".join(re.sub(r"^\.+", "_", part) for part in entry.path.lstrip("/").split("/"))
        label = self._labels[index]
        is_node = self._sources[index].is_node
        place = f"nodes/{label}/{_category(entry.path)}" if is_node else f"files/{label}"
        target = fitting(f"{place}/{inside}", self._names, place.count("/") + 1)
        self.plan.wanted.append(Wanted(index, entry, target))

    def add_refused(self) -> None:
        """A gap for each part of a node that another one sends, as far as the node itself does not."""
        for (index, node), count in sorted((+self._refused).items()):
            why = f"sent by {self._sources[index].name}: only that node itself speaks for its part"
            self.add_gap(index, f"{count} files of nodes/{node}", why)


def _category(path: str) -> str:
    if dump_rank(path) is not None:
        return "dumps"
    return "logs" if _LOG.search(path) else "files"


def _latest_dump(listings: Mapping[int, Listing]) -> int:
    """When the newest dump was written, as far as that can be: a clock that is days ahead must not age the others."""
    soon = time.time() + FUTURE_S
    times = [
        entry.mtime
        for listing in listings.values()
        for entry in listing.entries
        if entry.mtime is not None and entry.mtime <= soon and dump_rank(entry.path) is not None
    ]
    return max(times, default=0)


def _from_the_future(listings: Mapping[int, Listing]) -> list[tuple[int, Entry]]:
    soon = time.time() + FUTURE_S
    return [
        (index, entry)
        for index, listing in sorted(listings.items())
        for entry in listing.entries
        if entry.mtime is not None and entry.mtime > soon and dump_rank(entry.path) is not None
    ][: limits.TREE_SKIPPED]


def _labels(sources: Sequence[Source]) -> list[str]:
    """A folder's name for each source; two of the same name get a number."""
    used: dict[str, int] = {}
    labels = []
    for source in sources:
        label = safe_name(source.name)
        used[label] = used.get(label, 0) + 1
        labels.append(label if used[label] == 1 else f"{label}-{used[label]}")
    return labels


def _roots(listing: Listing) -> set[str]:
    """Directories that have a manifest, a node's description below nodes/, or a run's mark beside nodes/."""
    found: set[str] = set()
    runs: set[str] = set()
    with_nodes: set[str] = set()
    for entry in listing.entries:
        folder, _, name = entry.path.rpartition("/")
        if name == MANIFEST:
            found.add(f"{folder}/" if folder else "")
        elif name == RUN:
            runs.add(f"{folder}/" if folder else "")
        if match := _NODES.match(entry.path):
            with_nodes.add(match["root"])
            if match["file"] == NODE_FILE:
                found.add(match["root"])
    return found | (runs & with_nodes)


def _manifest(described: bytes | None, run: bytes | None) -> tuple[Manifest, str]:
    """What describes an incident, and what is wrong with it."""
    problem = ""
    if described is not None:
        try:
            return _timely(manifests.parse(described))
        except DamagedError as error:
            problem = f"cannot be used: {error.reason}"
    try:
        value = bounded_json.loads(run or b"{}")
    except ValueError:
        value = {}
    value = value if isinstance(value, dict) else {}
    text = {key: str(value[key]) for key in ("job", "attempt") if isinstance(value.get(key), (str, int))}
    return Manifest(job=text.get("job"), attempt=text.get("attempt")), problem


def _timely(manifest: Manifest) -> tuple[Manifest, str]:
    """A time that cannot be is none: one source's clock, or its fancy, must not decide which incident is the newest."""
    if manifest.captured_at is None:
        return manifest, ""
    try:
        at = datetime.fromisoformat(manifest.captured_at.replace("Z", "+00:00")).timestamp()
        problem = "" if at <= time.time() + FUTURE_S else "captured in the future, by its own account: not trusted"
    except (ValueError, OverflowError, OSError):
        problem = "its capture time is not a time"
    return (replace(manifest, captured_at=None), problem) if problem else (manifest, "")


def _node(source: Source) -> str | None:
    return source.name if source.is_node else None


def _name(sources: Sequence[Source], root: Root) -> str:
    job, attempt, number = root.key
    which = f"job {job}, attempt {attempt}" + (f", {number}" if number else "")
    return f"{which}: {root.path or sources[root.source].name}"
