"""Several jobs in one folder are found apart by what contradicts, and never by how folders are called.

The nodes of one job often lie in folders of their own, so that there are several folders says nothing. Two folders are
of two runs where most of their ranks are in both, each time as another process: a recording with other moments under
the same numbers, another timeout, another pid. Where such runs have the same size, groups and code they are attempts of
one job, else two jobs. Folders are put together from the innermost outwards, so that a job's nodes meet before its
neighbours do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

from hangscope.reader.find_files import Found
from hangscope.reader.join.folder_units import Parts, Unit, compare, same_program, units_of
from hangscope.reader.raw_evidence import Evidence

_MOST_FOLDERS = 64
"""Folders that speak of one rank, and are compared with each other."""


class Relation(Enum):
    """What two folders are to each other."""

    UNKNOWN = "nothing speaks against one job"
    SAME = "the same processes"
    ATTEMPTS = "two runs of the same"
    APART = "two jobs"


@dataclass(frozen=True, slots=True)
class FoundJob:
    """One of several jobs that lie side by side."""

    name: str
    attempt: str
    files: frozenset[str]
    ranks: int
    """How many ranks it has, or at least has evidence of."""
    hosts: tuple[str, ...]
    started_ns: int | None
    ended_ns: int | None
    """From when to when something of it is recorded."""
    dumps: int
    family: int
    """The same number for attempts of one job."""
    doubt: str = ""
    """Why it may belong to another one, where that cannot be known."""


def jobs_of(found: Iterable[Found], evidence: Evidence) -> list[FoundJob]:
    """The jobs among the files, the newest last; none where nothing says that there are several."""
    units = units_of(found, evidence)
    if not _may_differ(list(units.values())):
        return []
    clusters = [unit for unit in _apart(units) if unit.ranks]
    if len(clusters) < 2:
        return []
    families = _families(clusters)
    made = [_found_job(unit, clusters, family) for unit, family in zip(clusters, families, strict=True)]
    return sorted(made, key=lambda job: (job.ended_ns or 0, job.name))


def _may_differ(units: Sequence[Unit]) -> bool:
    """Whether any two folders speak of the same rank as of two processes: almost never, and quickly seen."""
    if len({name for unit in units for name in unit.names}) > 1 or len({n for unit in units for n in unit.sizes}) > 1:
        return True
    by_rank: dict[int, list[Unit]] = defaultdict(list)
    for unit in units:
        for rank in unit.ranks:
            by_rank[rank].append(unit)
    pairs = {
        (id(one), id(other)): (one, other)
        for together in by_rank.values()
        for one, other in combinations(together[:_MOST_FOLDERS], 2)
    }
    return any(compare(one, other)[1] for one, other in pairs.values())


def _relation(one: Unit, other: Unit) -> Relation:
    if one.names and other.names and one.names.isdisjoint(other.names):
        jobs = {name for name, _ in one.names}
        return Relation.APART if jobs.isdisjoint(name for name, _ in other.names) else Relation.ATTEMPTS
    same, another = compare(one, other)
    if same:
        return Relation.SAME
    if not one.is_of_one_run or not other.is_of_one_run:
        return Relation.UNKNOWN
    if one.sizes and other.sizes and one.sizes.isdisjoint(other.sizes):
        fewer = min(len(one.ranks), len(other.ranks))
        return Relation.APART if 2 * len(one.ranks & other.ranks) > fewer else Relation.UNKNOWN
    if 2 * len(another) <= max(len(one.ranks), len(other.ranks)):
        return Relation.UNKNOWN  # a few files that an earlier run left behind, or nothing to compare
    return _two_runs(one, other, another)


def _two_runs(one: Unit, other: Unit, ranks: set[int]) -> Relation:
    """What two runs are to each other of which these ranks are other processes."""
    if not same_program(one, other, ranks):
        return Relation.APART
    # Of dumps alone the newest of each rank is taken later, and those that do not fit the others are left out.
    return Relation.ATTEMPTS if one.logs and other.logs else Relation.UNKNOWN


# ---- from the innermost folder outwards ------------------------------------------------------------------------------


def _apart(units: Mapping[Parts, Unit]) -> list[Unit]:
    """The units, those together that are of one job."""
    waiting: dict[Parts, list[Unit]] = {folder: [unit] for folder, unit in units.items()}
    while len(waiting) > 1 or () not in waiting:
        deepest = max(map(len, waiting))
        for folder in [folder for folder in waiting if len(folder) == deepest]:
            inside = _joined(waiting.pop(folder))
            waiting.setdefault(folder[:-1], []).extend(inside)
    return _joined(waiting[()])


def _joined(units: Sequence[Unit]) -> list[Unit]:
    """The units of one folder and its subfolders: all as one, unless some of them are of different runs."""
    if len(units) < 2:
        return list(units)
    apart = {pair for pair in combinations(range(len(units)), 2) if _are_apart(units[pair[0]], units[pair[1]])}
    if not apart:
        return [_merged(units)]
    return _linked(units, apart)


def _are_apart(one: Unit, other: Unit) -> bool:
    if not one.names and not other.names and one.ranks.isdisjoint(other.ranks):
        return False
    return _relation(one, other) in (Relation.APART, Relation.ATTEMPTS)


def _merged(units: Sequence[Unit]) -> Unit:
    whole = Unit(units[0].folder)
    for unit in units:
        whole.add(unit)
    return whole


def _linked(units: Sequence[Unit], apart: set[tuple[int, int]]) -> list[Unit]:
    """Units of several runs beside each other: put together only what something says belongs together."""
    clusters: list[set[int]] = [{number} for number in range(len(units))]
    for one, other in combinations(range(len(units)), 2):
        mine, theirs = (next(each for each in clusters if number in each) for number in (one, other))
        if mine is theirs or not _belong_together(units[one], units[other]):
            continue
        if not any((min(a, b), max(a, b)) in apart for a in mine for b in theirs):
            mine |= theirs
            clusters.remove(theirs)
    return [_merged([units[number] for number in sorted(cluster)]) for cluster in clusters]


def _belong_together(one: Unit, other: Unit) -> bool:
    """Whether something says so: a common communicator, a common job and attempt, the same processes."""
    if one.communicators & other.communicators or one.names & other.names:
        return True
    return _relation(one, other) == Relation.SAME


# ---- what is said of each --------------------------------------------------------------------------------------------


def _families(clusters: Sequence[Unit]) -> list[int]:
    """A number for each, the same for attempts of one job."""
    families = list(range(len(clusters)))
    for one, other in combinations(range(len(clusters)), 2):
        if _relation(clusters[one], clusters[other]) == Relation.ATTEMPTS:
            joins = families[other]
            families = [families[one] if family == joins else family for family in families]
    return families


def _found_job(unit: Unit, clusters: Sequence[Unit], family: int) -> FoundJob:
    named = sorted(unit.names)
    name, attempt = named[-1] if named else ("/".join(_own_path(unit, clusters)), "")
    doubt = ""
    if not any(_are_apart(unit, other) for other in clusters if other is not unit):
        doubt = "it may belong to one of the others"
    return FoundJob(
        name=name,
        attempt=attempt,
        files=frozenset(unit.files),
        ranks=max(max(unit.sizes, default=0), len(unit.ranks)),
        hosts=tuple(sorted(unit.hosts)),
        started_ns=min(unit.times_ns, default=None),
        ended_ns=max(unit.times_ns, default=None),
        dumps=len(unit.dumps),
        family=family,
        doubt=doubt,
    )


def _own_path(unit: Unit, clusters: Sequence[Unit]) -> Parts:
    """Its folder without what all have in front."""
    folders = [each.folder for each in clusters]
    shared = 0
    while all(len(folder) > shared + 1 for folder in folders) and len({folder[shared] for folder in folders}) == 1:
        shared += 1
    return unit.folder[shared:] or unit.folder
