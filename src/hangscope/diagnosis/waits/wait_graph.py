"""The wait-for graph over all groups at once.

A rank waits in an operation; the operation waits for the ranks that have not joined it. Ranks that others wait for, and
that wait for no one, block the job. Ranks that wait for each other with no way out are a wait cycle: a deadlock.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from hangscope.diagnosis.align.column_tools import grouped
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.waits.counterparts import Counterpart, counterparts
from hangscope.diagnosis.waits.progress import Place, Progress, Scope, Unit
from hangscope.diagnosis.waits.reachability import closed_sets, search
from hangscope.model import State

# An operation younger than this when the evidence was taken is in flight, not stuck.
IN_FLIGHT_S = 2.0
# Calls that nobody leaves before every rank of the job has come.
MADE_BY_ALL = frozenset(("new_group", "new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh"))
# Comparisons of one group's operations with its members. Ranks of a real job are in a few operations at once; a log of
# thousands of lines may name as many.
_MOST_COMPARISONS = 400_000
_ALWAYS_COMPARED = 16
_FURTHEST_BEHIND = 8


class Because(Enum):
    """Why an operation waits for a rank."""

    NOT_LAUNCHED = "never launched it"
    QUEUED = "is still inside something earlier"
    NOT_STARTED = "launched it, but its GPU has not started it"
    NOT_KNOWN = "is not known to have joined"


_WHY = {Place.NOT_LAUNCHED: Because.NOT_LAUNCHED, Place.QUEUED: Because.QUEUED, Place.NOT_KNOWN: Because.NOT_KNOWN}


@dataclass(slots=True)
class Wait:
    """One operation that somebody is inside of: the ranks in it, and the ranks it waits for.

    `common_start`, of a point-to-point wait: whether its calls and the peer's could be counted from the same point.
    `age_s`: how long it had been waiting when the evidence was taken; None where nothing says so. `age_is_least`: at
    least so long, as by two looks that found it there.
    """

    group: int
    seq: int | None
    name: str
    point_to_point: bool
    inside: list[Unit] = field(default_factory=list)
    blockers: dict[int, Because] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    counterparts: list[tuple[int, Counterpart]] = field(default_factory=list)
    common_start: bool = True
    age_s: float | None = None
    age_is_least: bool = False

    waiters: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.waiters = tuple(sorted({u.rank for u in self.inside}))

    @property
    def in_flight(self) -> bool:
        return self.age_s is not None and self.age_s < IN_FLIGHT_S

    @property
    def only_failed(self) -> bool:
        """Whether all that is known of it is that it failed, as when a peer is gone: for how long it waited is not."""
        reports = [unit.report for unit in self.inside]
        return self.age_s is None and all(report is not None and report.kind == "async_error" for report in reports)


class Waits:
    """The wait-for graph: rank → operations it is inside of → ranks those wait for."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.all: list[Wait] = []
        self.of: dict[int, list[Wait]] = {rank: [] for rank in progress.of}
        self._sorted: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._paths: dict[frozenset[int], dict[int, tuple[int, ...]]] = {}
        # Who has an earlier dump has long left what it shows them inside of.
        units = [u for mine in progress.of.values() if mine.scope is not Scope.EARLIER for u in mine.inside]
        for unit in units:
            if unit.point_to_point and not unit.makes_group_of:
                self._add(self._peer_wait(unit))
        making = grouped(((u.makes_group_of, u.makes_group), u) for u in units if u.makes_group_of)
        for (ranks, _), makers in making.items():
            self._add(self._group_wait(ranks, makers))
        collectives = grouped(((u.group, u.seq), u) for u in units if not u.point_to_point)
        self.crowded = self._find_crowded(collectives)
        """Groups whose ranks are in too many operations to compare each with all members: how many."""
        self._furthest_behind = {group: _furthest_behind(collectives, group) for group in self.crowded}
        for (group, seq), inside in collectives.items():
            wait = Wait(group, seq, _usual_name(inside), point_to_point=False, inside=inside)
            self._fill(wait)
            self._add(wait)

    def _find_crowded(self, collectives: Mapping[tuple[int, int | None], Sequence[Unit]]) -> dict[int, int]:
        operations = Counter(group for group, _ in collectives)
        crowded: dict[int, int] = {}
        for group, count in operations.items():
            members = len(self.progress.groups[group].members or ()) + len(self.progress.groups[group].open)
            if count > _ALWAYS_COMPARED and count * members > _MOST_COMPARISONS:
                crowded[group] = count
        return crowded

    def _add(self, wait: Wait) -> None:
        self.all.append(wait)
        for rank in wait.waiters:
            self.of[rank].append(wait)

    def _fill(self, wait: Wait) -> None:
        """Find the blockers of a collective: members that have not joined it, or whose GPU has not."""
        init = self.progress.comm_inits.get(wait.group)
        for rank, belongs in init.missing.items() if init is not None else ():
            wait.blockers[rank] = Because.NOT_LAUNCHED if belongs is Says.YES else Because.NOT_KNOWN
        if wait.seq is not None:
            self._add_not_joined(wait, wait.seq)
            self._add_not_started(wait)

    def _add_not_joined(self, wait: Wait, seq: int) -> None:
        at_ns = self.launched_at_ns(wait)
        inside = {unit.rank for unit in wait.inside}
        for rank in self._compared(wait.group):
            if rank in inside:
                continue
            place = self.progress.place(rank, wait.group, seq, at_ns)
            if place is Place.COMPLETED:
                wait.finished.add(rank)
            elif place in _WHY:
                wait.blockers[rank] = _WHY[place]

    def _compared(self, group: int) -> Sequence[int]:
        """The members that an operation is compared with: all, and in a crowded group those furthest behind."""
        if group in self._furthest_behind:
            return self._furthest_behind[group]
        known = self.progress.groups[group]
        return (*(known.members or ()), *known.open)

    def _add_not_started(self, wait: Wait) -> None:
        """Only whole records of this hang say whose kernel started, and most of them whose should have."""
        of = self.progress.of
        own = [unit for unit in wait.inside if of[unit.rank].own_record]
        began = sum(of[rank].own_record for rank in wait.finished) + sum(u.state is State.STARTED for u in own)
        late = [unit.rank for unit in own if unit.state is State.SCHEDULED and of[unit.rank].timing]
        if began >= max(len(late), 1):
            wait.blockers.update(dict.fromkeys(late, Because.NOT_STARTED))

    def _peer_wait(self, unit: Unit) -> Wait:
        wait = Wait(unit.group, unit.seq, unit.name, point_to_point=True, inside=[unit])
        wait.counterparts = counterparts(unit, self.progress)
        for _, other in wait.counterparts:
            if other.peer == unit.rank:
                continue
            if other.place is Place.NOT_LAUNCHED:
                wait.blockers[other.peer] = Because.NOT_LAUNCHED
                wait.common_start &= other.common_start
            elif other.place is Place.COMPLETED:
                wait.finished.add(other.peer)
            elif other.place in _WHY or self._not_started(unit, other):
                wait.blockers.setdefault(other.peer, _WHY.get(other.place, Because.NOT_STARTED))
        if unit.peer is not None and unit.peer != unit.rank and not self._answers(unit):
            known = unit.peer in self.progress.of and self.progress.of[unit.peer].known
            wait.blockers[unit.peer] = Because.NOT_LAUNCHED if known else Because.NOT_KNOWN
        return wait

    def _group_wait(self, ranks: Sequence[int], makers: list[Unit]) -> Wait:
        """Ranks that make one group of the same ranks: its members connect to each other, and wait for all of them."""
        wait = Wait(makers[0].group, None, makers[0].name, point_to_point=True, inside=makers)
        for rank in set(ranks) - {unit.rank for unit in makers}:
            known = rank in self.progress.of and self.progress.of[rank].known
            wait.blockers[rank] = Because.NOT_LAUNCHED if known else Because.NOT_KNOWN
        return wait

    def _answers(self, unit: Unit) -> bool:
        """Whether the peer of a call that no recorder has is inside the other side of it, with the same tag."""
        peer = self.progress.of.get(unit.peer) if unit.peer is not None else None
        for other in peer.inside if peer is not None else ():
            given = (unit.arguments, other.arguments)
            tags = {each.tag for each in given if each is not None}
            if other.peer == unit.rank and other.receives != unit.receives and len(tags) == 1:
                return True
        return False

    def _not_started(self, unit: Unit, other: Counterpart) -> bool:
        """Whether this rank's GPU started its side while the peer's GPU has not."""
        peer = self.progress.of[other.peer]
        if unit.state is not State.STARTED or not peer.timing or other.row is None:
            return False
        return any(other.row in u.rows and u.state is State.SCHEDULED for u in peer.inside)

    # ---- asking ------------------------------------------------------------------------------------------------------

    def launched_at_ns(self, wait: Wait) -> int | None:
        """When the first rank launched the operation, on that rank's clock."""
        created = self.progress.job.ops.column("created_ns")
        times = [int(created[u.row]) for u in wait.inside if u.row is not None and created[u.row] >= 0]
        return min(times) if times else None

    def blockers(self, rank: int) -> Mapping[int, Because]:
        """The ranks that `rank` waits for, each with the strongest reason. A rank never waits for itself."""
        waits = self._in.get(rank, ())
        if len(waits) == 1 and rank not in waits[0].blockers:
            return waits[0].blockers
        found: dict[int, Because] = {}
        for wait in waits:
            for other, because in wait.blockers.items():
                if other != rank and (other not in found or because is Because.NOT_LAUNCHED):
                    found[other] = because
        return found

    def awaited_by(self, ranks: Sequence[int]) -> set[int]:
        """All other ranks that these wait for, directly or through others."""
        return set(search(ranks, self._in, lambda wait: wait.blockers)).difference(ranks)

    def awaited(self, rank: int) -> tuple[int, ...]:
        """The same ranks, in order; thousands that wait in the same operations share one list."""
        waits = self._in.get(rank, ())
        key = tuple(map(id, waits))
        if any(rank in wait.blockers for wait in waits):
            return tuple(sorted(self.blockers(rank)))
        if key not in self._sorted:
            self._sorted[key] = tuple(sorted(self.blockers(rank)))
        return self._sorted[key]

    @cached_property
    def _in(self) -> dict[int, list[Wait]]:
        """Rank → the operations that hold it up. Whether a kernel starts does not depend on its peers."""
        pairs = ((rank, wait) for rank, waits in self.of.items() for wait in waits if wait.blockers)
        return grouped((rank, wait) for rank, wait in pairs if wait.blockers.get(rank) is not Because.NOT_STARTED)

    @cached_property
    def _behind(self) -> dict[int, list[Wait]]:
        """The same the other way round: rank → the operations that it holds up."""
        waits = {id(wait): wait for waits in self._in.values() for wait in waits}
        return grouped((rank, wait) for wait in waits.values() for rank in wait.blockers)

    def waits_on(self, rank: int) -> list[Wait]:
        """The operations that wait for `rank`."""
        return self._on.get(rank, [])

    @cached_property
    def _on(self) -> dict[int, list[Wait]]:
        return grouped((rank, wait) for wait in self.all for rank in wait.blockers)

    def drop(self, waits: list[Wait]) -> None:
        """Leave operations out that are merely in flight."""
        gone = {id(wait) for wait in waits}
        self.all = [w for w in self.all if id(w) not in gone]
        self.of = {rank: [w for w in found if id(w) not in gone] for rank, found in self.of.items()}

    def blocking(self) -> list[int]:
        """Ranks that others wait for, and that wait for no one."""
        awaited: set[int] = set()
        for wait in self.all:
            others = {*wait.waiters, *wait.finished}
            awaited |= wait.blockers.keys() - (others if len(others) == 1 else ())
        return sorted(rank for rank in awaited if not self.blockers(rank) and not self._waits_unrecorded(rank))

    def _waits_unrecorded(self, rank: int) -> bool:
        """Whether a rank waits in something that was not recorded: for which rank is not known, but for somebody.

        A group is made by all ranks together: where all others wait for the one that makes it, it alone does.
        """
        calls = {unit.name for unit in self.progress.of[rank].inside if not unit.rows and unit.seq is None}
        if not calls:
            return False
        alone = calls <= MADE_BY_ALL and len(self.of) > 2 and len(self.reaches({rank})) + 1 == len(self.of)
        return not alone

    def cycles(self) -> list[list[int]]:
        """Sets of ranks that wait for each other and, outside the set, for no one."""
        return closed_sets(self._in, self._in, lambda wait: wait.blockers)

    def chain(self, rank: int, goals: set[int]) -> tuple[int, ...]:
        """A shortest path of waits from `rank` to one of `goals`, both ends included; empty where there is none."""
        return (rank,) if rank in goals else self.reaches(goals).get(rank, ())

    def reaches(self, goals: set[int]) -> dict[int, tuple[int, ...]]:
        """For every rank that waits, directly or through others, for one of `goals`: the way there, itself first."""
        known = frozenset(goals)
        if known not in self._paths:
            paths: dict[int, tuple[int, ...]] = {}
            for rank, following in search(sorted(known), self._behind, _held_up).items():
                paths[rank] = (rank,) if following is None else (rank, *paths[following])
            self._paths[known] = {rank: path for rank, path in paths.items() if rank not in known}
        return self._paths[known]


def _usual_name(inside: Sequence[Unit]) -> str:
    """What most ranks call that are inside: one of them may have called something else there."""
    names = Counter(unit.name for unit in inside if unit.name != "collective")
    return names.most_common(1)[0][0] if names else "collective"


def _furthest_behind(collectives: Mapping[tuple[int, int | None], Sequence[Unit]], group: int) -> list[int]:
    """The ranks in the first operations of a group, as far as numbers say which those are."""
    numbered = sorted((seq, index) for index, (of, seq) in enumerate(collectives) if of == group and seq is not None)
    inside = list(collectives.values())
    return [unit.rank for _, index in numbered[:_FURTHEST_BEHIND] for unit in inside[index]][:_FURTHEST_BEHIND]


def _held_up(wait: Wait) -> list[int]:
    """The ranks inside that wait for the others."""
    return [rank for rank in wait.waiters if wait.blockers.get(rank) is not Because.NOT_STARTED]
