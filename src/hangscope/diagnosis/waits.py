"""Who waits for whom, over all groups at once.

A rank waits in an operation; the operation waits for the ranks that have not joined it. Ranks that others wait for, and
that wait for no one, are the roots. A knot of ranks that wait for each other with no way out is a deadlock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from hangscope.diagnosis.p2p import Counterpart, counterparts
from hangscope.diagnosis.standing import Place, Standing, Standings, Unit
from hangscope.model import State


class Because(Enum):
    """Why an operation waits for a rank."""

    NOT_LAUNCHED = "never launched it"
    QUEUED = "is still inside something earlier"
    NOT_STARTED = "launched it, but its GPU has not started it"
    UNKNOWN = "is not known to have joined"


@dataclass(slots=True)
class Wait:
    """One operation that somebody is inside of: the ranks in it, and the ranks it waits for."""

    group: int
    seq: int | None
    name: str
    point_to_point: bool
    inside: list[Unit] = field(default_factory=list)
    blockers: dict[int, Because] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    counterparts: list[tuple[int, Counterpart]] = field(default_factory=list)
    certain: bool = True

    @property
    def waiters(self) -> tuple[int, ...]:
        return tuple(sorted({u.rank for u in self.inside}))


class Waits:
    """The wait-for graph: rank → operations it is inside of → ranks those wait for."""

    def __init__(self, standings: Standings) -> None:
        self.standings = standings
        self.all: list[Wait] = []
        self.of: dict[int, list[Wait]] = {rank: [] for rank in standings.of}
        self._blockers: dict[int, dict[int, Because]] = {}
        collective: dict[tuple[int, int | None], Wait] = {}
        for standing in standings.of.values():
            if standing.outdated:
                continue  # it has long left what its dump shows it inside of
            for unit in standing.inside:
                if unit.point_to_point:
                    self._add(self._peer_wait(unit))
                else:
                    wait = collective.setdefault(
                        (unit.group, unit.seq), Wait(unit.group, unit.seq, unit.name, point_to_point=False)
                    )
                    wait.inside.append(unit)
                    if wait.name == "collective":
                        wait.name = unit.name
        for wait in collective.values():
            self._fill(wait)
            self._add(wait)

    def _add(self, wait: Wait) -> None:
        self.all.append(wait)
        for rank in wait.waiters:
            self.of[rank].append(wait)

    def _fill(self, wait: Wait) -> None:
        """Find the blockers of a collective: members that have not joined it, or whose GPU has not."""
        standings = self.standings
        joining = standings.joining.get(wait.group)
        if joining is not None:
            for rank, certain in joining.missing.items():
                wait.blockers[rank] = Because.NOT_LAUNCHED if certain else Because.UNKNOWN
        if wait.seq is None:
            return
        at_ns = self.launched_at_ns(wait)
        inside = {u.rank for u in wait.inside}
        group = standings.groups[wait.group]
        for rank in (*(group.members or ()), *group.open):
            if rank in inside:
                continue
            place = standings.place(rank, wait.group, wait.seq, at_ns)
            if place is Place.COMPLETED:
                wait.finished.add(rank)
            elif place is Place.NOT_LAUNCHED:
                wait.blockers[rank] = Because.NOT_LAUNCHED
            elif place is Place.QUEUED:
                wait.blockers[rank] = Because.QUEUED
            elif place is Place.UNKNOWN:
                wait.blockers[rank] = Because.UNKNOWN
        if wait.finished or any(u.state is State.STARTED for u in wait.inside):
            for unit in wait.inside:
                if unit.state is State.SCHEDULED and standings.of[unit.rank].timing:
                    wait.blockers[unit.rank] = Because.NOT_STARTED

    def _peer_wait(self, unit: Unit) -> Wait:
        wait = Wait(unit.group, unit.seq, unit.name, point_to_point=True, inside=[unit])
        wait.counterparts = counterparts(unit, self.standings)
        for _, other in wait.counterparts:
            if other.peer == unit.rank:
                continue
            if other.place is Place.NOT_LAUNCHED:
                wait.blockers[other.peer] = Because.NOT_LAUNCHED
                wait.certain &= other.certain
            elif other.place is Place.QUEUED:
                wait.blockers.setdefault(other.peer, Because.QUEUED)
            elif other.place is Place.UNKNOWN:
                wait.blockers.setdefault(other.peer, Because.UNKNOWN)
            elif other.place is Place.COMPLETED:
                wait.finished.add(other.peer)
            elif self._not_started(unit, other):
                wait.blockers.setdefault(other.peer, Because.NOT_STARTED)
        return wait

    def _not_started(self, unit: Unit, other: Counterpart) -> bool:
        """Whether this rank's GPU started its side while the peer's GPU has not."""
        peer = self.standings.of[other.peer]
        if unit.state is not State.STARTED or not peer.timing or other.row is None:
            return False
        return any(other.row in u.rows and u.state is State.SCHEDULED for u in peer.inside)

    # ---- asking ------------------------------------------------------------------------------------------------------

    def launched_at_ns(self, wait: Wait) -> int | None:
        """When the first rank launched the operation, on that rank's clock."""
        created = self.standings.job.ops.column("created_ns")
        times = [int(created[u.row]) for u in wait.inside if u.row is not None and created[u.row] >= 0]
        return min(times) if times else None

    def blockers(self, rank: int) -> dict[int, Because]:
        """The ranks that `rank` waits for, each with the strongest reason. A rank never waits for itself."""
        found = self._blockers.get(rank)
        if found is None:
            found = self._blockers[rank] = {}
            for wait in self.of.get(rank, ()):
                for other, because in wait.blockers.items():
                    if other != rank and (other not in found or because is Because.NOT_LAUNCHED):
                        found[other] = because
        return found

    def waits_on(self, rank: int) -> list[Wait]:
        """The operations that wait for `rank`."""
        return [w for w in self.all if rank in w.blockers]

    def roots(self) -> list[int]:
        """Ranks that others wait for, and that wait for no one."""
        awaited = {r for wait in self.all for r in wait.blockers if {*wait.waiters, *wait.finished} - {r}}
        return sorted(rank for rank in awaited if not self.blockers(rank) and not self._waits_unrecorded(rank))

    def _waits_unrecorded(self, rank: int) -> bool:
        """Whether a rank waits in something that was not recorded: for whom is not known, but for somebody."""
        return any(not unit.rows and unit.seq is None for unit in self.standings.of[rank].inside)

    def knots(self) -> list[list[int]]:
        """Sets of ranks that wait for each other and, outside the set, for no one."""
        edges = {rank: set(self.blockers(rank)) for rank in self.of}
        components = _strongly_connected(edges)
        return sorted(
            sorted(c) for c in components if len(c) > 1 and all(edges.get(rank, set()) <= set(c) for rank in c)
        )

    def chain(self, rank: int, goals: set[int]) -> tuple[int, ...]:
        """The shortest path of waits from `rank` to one of `goals`, both ends included; empty where there is none."""
        previous: dict[int, int | None] = {rank: None}
        queue = deque([rank])
        while queue:
            here = queue.popleft()
            if here in goals:
                path = [here]
                while (before := previous[path[-1]]) is not None:
                    path.append(before)
                return tuple(reversed(path))
            for other in sorted(self.blockers(here)):
                if other not in previous:
                    previous[other] = here
                    queue.append(other)
        return ()

    def reaches(self, goals: set[int]) -> dict[int, tuple[int, ...]]:
        """For every rank that waits, directly or through others, for one of `goals`: the way there, itself first."""
        waiting_for: dict[int, set[int]] = {}
        for rank in self.of:
            for other in self.blockers(rank):
                waiting_for.setdefault(other, set()).add(rank)
        step: dict[int, int | None] = dict.fromkeys(sorted(goals))
        queue = deque(sorted(goals))
        while queue:
            here = queue.popleft()
            for rank in sorted(waiting_for.get(here, ())):
                if rank not in step:
                    step[rank] = here
                    queue.append(rank)
        found: dict[int, tuple[int, ...]] = {}
        for rank in step:
            if rank in goals:
                continue
            path = [rank]
            while (following := step[path[-1]]) is not None:
                path.append(following)
            found[rank] = tuple(path)
        return found

    def standing(self, rank: int) -> Standing:
        return self.standings.of[rank]


def _strongly_connected(edges: dict[int, set[int]]) -> list[list[int]]:
    """Tarjan's algorithm without recursion: jobs have more ranks than Python has stack."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    components: list[list[int]] = []
    for start in sorted(edges):
        if start in index:
            continue
        work = [(start, iter(sorted(edges.get(start, ()))))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, following = work[-1]
            advanced = False
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(edges.get(other, ())))))
                    advanced = True
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            if advanced:
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                component: list[int] = []
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    component.append(member)
                    if member == node:
                        break
                components.append(component)
    return components
