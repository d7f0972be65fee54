"""How far each rank got: what it is inside of, what it queued behind that, what it never launched.

A rank's own dump says so best; its counters (in its dump or in its log's watchdog lines) say it roughly; otherwise it
is not known, which is a value. A dump says "never launched" only of what lies within its scope: a cut dump is silent
after the cut, one that was taken before its peers' is silent about what they did since, and a disputed one about all
that it does not have.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import takewhile

import numpy as np

from hangscope.diagnosis.align.agreement import PEER_CALLS, members_not_recorded
from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Bools, grouped
from hangscope.diagnosis.align.lanes import Lane
from hangscope.diagnosis.waits.comm_init import CommInit, comm_inits
from hangscope.model import UNKNOWN, Frame, Group, GroupStatus, Kind, Operation, State, WatchdogReport


class Place(Enum):
    """Where a rank is with respect to one operation of one of its groups.

    INSIDE: it launched it, and this is what it waits in. QUEUED: it launched it, but is still inside something earlier.
    """

    COMPLETED = "completed"
    INSIDE = "inside"
    QUEUED = "queued"
    NOT_LAUNCHED = "not launched"
    NOT_KNOWN = "unknown"


class Scope(Enum):
    """What the silence of a rank's dump is worth."""

    WHOLE = "what it does not have, the rank never launched"
    CUT = "it breaks off: silent after the cut"
    EARLIER = "it was taken before its peers': silent about what they did since"
    DISPUTED = "it may be of another time: silent about all that it does not have"


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing a rank launched and has not finished: a collective, a point-to-point call, or a batch of them.

    `rows` are the operations inside, and the last one stands for the unit; none where only a log speaks of it.
    """

    rank: int
    group: int
    seq: int | None
    name: str = "collective"
    state: State = State.UNKNOWN
    rows: tuple[int, ...] = ()
    point_to_point: bool = False
    report: WatchdogReport | None = None

    @property
    def row(self) -> int | None:
        return self.rows[-1] if self.rows else None


@dataclass(slots=True)
class RankProgress:
    """One rank's position in all its groups.

    `source` is "dump", "poll", "counters" or "none". `inside` is what it waits in: the oldest unfinished unit, and the
    oldest started one of every other group. `launched` and `completed` are, per group, its largest collective sequence
    numbers. `counted` are the groups of a cut dump for which the rank's counters say how far it got. `stale`: its peers
    completed what needs this rank and what its record has as unfinished, so its watchdog stopped noticing.
    """

    rank: int
    source: str
    inside: tuple[Unit, ...] = ()
    queued: tuple[Unit, ...] = ()
    launched: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    first_kept: dict[int, int] = field(default_factory=dict)
    oldest_ns: int | None = None
    timing: bool = False
    scope: Scope = Scope.WHOLE
    counted: set[int] = field(default_factory=set)
    stale: bool = False

    @property
    def known(self) -> bool:
        return self.source != "none"

    @property
    def own_record(self) -> bool:
        """Whether its own dump shows what it did, up to the hang."""
        return self.source in ("dump", "poll") and self.scope is Scope.WHOLE


# How many collectives that one rank alone completed are looked at, newest first.
_LOOK_BACK = 256
_FAR = 1 << 62
# Where the calls of torch.distributed are defined.
_CALLS = "/distributed_c10d.py"


class Progress:
    """The progress of all ranks, and the place of any rank at any operation."""

    def __init__(self, alignment: Alignment, disputed: Collection[int], differing: Collection[tuple[int, int]]) -> None:
        """`differing`: (rank, group) that ran something else than their peers; what those completed proves nothing."""
        self.alignment = alignment
        self.job = alignment.job
        self.groups: list[Group] = list(self.job.groups)
        self._called: dict[str, list[Group]] = {}
        self._default: list[Group] = []
        self._sets: dict[int, frozenset[int]] = {}
        for group in self.groups:
            self._know(group)
        self.of: dict[int, RankProgress] = {}
        # Groups in which point-to-point was used: their counters mix two scales and say nothing about collectives.
        mixed = np.bincount(self.job.ops.column("group")[alignment.point_to_point])
        self._mixed = set(np.flatnonzero(mixed).tolist())
        self._recorded = _Recorded(alignment)
        self._differing = set(differing)
        # Per group the last collective that every member is known to have launched, because several completed it.
        self.proven: dict[int, int] = {}
        watchdog = self.job.facts.watchdog
        self._group_of_report = {id(r): self._group(r.rank, r.group_name, r.group_desc) for r in watchdog}
        reports_of = grouped((r.rank, r) for r in watchdog if r.kind in ("timeout", "async_error", "status"))
        counted_of = grouped(self.job.status)
        for rank in self.job.ranks:
            reports = reports_of.get(rank, [])
            counted = counted_of.get(rank, [])
            mine = self._from_dump(rank, reports, counted, disputed)
            if mine is None:
                mine = self._from_counters(rank, reports, counted)
            elif mine.scope is Scope.DISPUTED and reports:
                mine = self._from_counters(rank, reports, [])
            self.of[rank] = mine = mine or RankProgress(rank, "none")
            mine.inside = mine.inside or self._unrecorded(rank, reports)
        self.comm_inits = self._inits()
        self._share_timing()
        for index, lane in self.alignment.lanes.items():
            # What one of the groups behind a number finished says nothing about another.
            if not members_not_recorded(lane.group):
                self._compare(index, lane)

    # ---- building ----------------------------------------------------------------------------------------------------

    def _from_dump(
        self, rank: int, reports: list[WatchdogReport], counted: list[int], disputed: Collection[int]
    ) -> RankProgress | None:
        dumps = self.job.dumps.get(rank, ())
        if not any(d.records for d in dumps):
            return None
        recorded = self._recorded
        poll = all(d.role == "poll" for d in dumps)
        mine = RankProgress(rank, "poll" if poll else "dump", timing=any(d.timing for d in dumps))
        if not all(d.complete for d in dumps):
            mine.scope = Scope.CUT
        elif rank in disputed:
            mine.scope = Scope.DISPUTED
        if not recorded.launches.get(rank):
            return mine if poll else None
        oldest = recorded.oldest_ns[rank]
        units = recorded.units.get(rank, [])
        mine.oldest_ns = oldest if oldest < _FAR else None
        for g, n in self.alignment.index.pairs.of_rank[rank]:
            if recorded.launched[n] >= 0:
                mine.launched[g] = recorded.launched[n]
                _keep_larger(mine.completed, {g: recorded.completed[n] if recorded.completed[n] >= 0 else None})
                if self.job.wrapped(rank):
                    mine.first_kept[g] = recorded.first[n]
        mine.inside, mine.queued = _split_inside([*self._overwritten(mine, units, reports), *units])
        counters = self._from_counters(rank, reports, counted) if mine.scope is Scope.CUT else None
        if counters is not None:
            # What a cut dump no longer shows, its counters and the rank's log may.
            seen = {(u.group, u.seq) for u in (*mine.inside, *mine.queued)}
            lost = [u for u in counters.inside if (u.group, u.seq) not in seen]
            mine.inside += tuple(u for u in lost if (u.seq or 0) > mine.launched.get(u.group, UNKNOWN))
            mine.counted = set(counters.launched)
            _keep_larger(mine.launched, counters.launched)
            _keep_larger(mine.completed, counters.completed)
        return mine

    def _overwritten(self, mine: RankProgress, units: list[Unit], reports: list[WatchdogReport]) -> list[Unit]:
        """Operations that a rank still waits in, although it queued so much behind them that its ring lost them.

        The counters know: the one after the last completed is what it is inside of, and the oldest entry is later.
        """
        lost: list[Unit] = []
        oldest = {unit.group: unit for unit in reversed(units) if not unit.point_to_point}
        for group, first in mine.first_kept.items():
            status = self._status(mine.rank, group)
            if status is None or status.last_completed is None:
                continue
            waits_in = status.last_completed + 1
            if group in oldest and oldest[group].seq == first > waits_in > 0:
                named = [r.operation for r in reports if r.seq == waits_in and r.operation]
                names = {unit.name for unit in units if unit.group == group}
                name = named[0] if named else names.pop() if len(names) == 1 else "collective"
                lost.append(Unit(mine.rank, group, waits_in, name))
        return lost

    def _counted_state(self, unit: Unit) -> State:
        """Whether its counters say that a rank's kernel started, where the recorder timed them."""
        status = self._status(unit.rank, unit.group)
        timed = any(d.timing for d in self.job.dumps.get(unit.rank, ()))
        began = timed and status is not None and (status.last_started or UNKNOWN) >= (unit.seq or 0)
        return State.STARTED if began else State.UNKNOWN

    def _status(self, rank: int, group: int) -> GroupStatus | None:
        """A rank's own counters for a group, where they count collectives."""
        status = self.job.status.get((rank, group))
        return None if status is None or status.counts_op_ids or group in self._mixed else status

    def _from_counters(self, rank: int, reports: list[WatchdogReport], counted: list[int]) -> RankProgress | None:
        """From the watchdog's lines, and from the counters of a dump without entries for the groups in `counted`."""
        mine = RankProgress(rank, "counters")
        inside: dict[tuple[int, int], Unit] = {}
        for group in counted:
            status = self._status(rank, group)
            if status is not None:
                _keep_larger(mine.launched, {group: status.last_enqueued})
                _keep_larger(mine.completed, {group: status.last_completed})
        for report in reports:
            group = self.group_of(report)
            if group not in self._mixed:
                _keep_larger(mine.launched, {group: report.last_enqueued})
                _keep_larger(mine.completed, {group: report.last_completed})
            if report.kind in ("timeout", "async_error") and report.seq is not None:
                # The watchdog's line names no peers, so nobody can be said to be missing from such a call.
                peers = report.operation in PEER_CALLS
                name = report.operation or "collective"
                unit = Unit(rank, group, report.seq, name, point_to_point=peers, report=report)
                inside.setdefault((group, report.seq), unit)
        reported = {group for group, _ in inside}
        for group, launched in mine.launched.items():
            completed = mine.completed.get(group, UNKNOWN)
            if launched > completed >= 0 and group not in reported:
                inside[group, completed + 1] = Unit(rank, group, completed + 1)
        # An asynchronous error may be reported for an operation that had just finished: the counters know better.
        left = [u for u in inside.values() if (u.seq or 0) > mine.completed.get(u.group, UNKNOWN)]
        mine.inside = tuple(replace(u, state=self._counted_state(u)) if u.group in counted else u for u in left)
        return mine if reports or mine.launched else None

    def _inits(self) -> dict[int, CommInit]:
        """Let the ranks in a communicator's init wait in that. Each init has a group of its own."""
        found: dict[int, CommInit] = {}
        for init in comm_inits(self.job, {rank for rank, mine in self.of.items() if not mine.inside}):
            waiting = [rank for rank in init.begun if all(not u.rows and u.seq is None for u in self.of[rank].inside)]
            if not waiting:
                continue
            group = self._add_group(init.comm_id, f"a communicator of {init.size} ranks", init.members)
            found[group] = init
            for rank in waiting:
                mine = self.of[rank]
                mine.inside = (Unit(rank, group, None, self._in_calls.get(rank, "communicator init")),)
                mine.source = "counters" if mine.source == "none" else mine.source
        return found

    def _add_group(self, name: str, desc: str, members: tuple[int, ...] | None) -> int:
        """A group that no dump knows."""
        self.groups.append(Group(len(self.groups), name, desc, members, members_seen=True))
        self._know(self.groups[-1])
        return len(self.groups) - 1

    def _know(self, group: Group) -> None:
        """Let it be found by what logs call it."""
        if group.is_called(group.name):
            self._called.setdefault(group.name, []).append(group)
        if group.desc in ("default_pg", ""):
            self._default.append(group)

    def _members(self, group: Group) -> frozenset[int]:
        if group.index not in self._sets:
            self._sets[group.index] = frozenset(group.members or ())
        return self._sets[group.index]

    def _unrecorded(self, rank: int, reports: list[WatchdogReport]) -> tuple[Unit, ...]:
        """What a rank waits in without a record. Gloo records no point-to-point calls, and its calls block: a rank that
        raised waited in something, and so does one without a dump whose own stack ends inside such a call."""
        raised = [r for r in reports if r.frames and r.kind in ("timeout", "async_error") and r.seq is None]
        gloo = all(d.backend in ("gloo", "") for d in self.job.dumps.get(rank, ()))  # a poll names none
        process = self.job.processes.get(rank)
        # What it printed while it was being stopped is not what it did when it was seen to wait in nothing.
        outside = process is not None and process.waits_in == ""
        report = raised[-1] if raised and gloo and not outside else None
        if report is None and rank not in self._in_calls:
            return ()
        name = (report.operation or "an operation that was not recorded") if report else self._in_calls[rank]
        group = self._group(rank, None, None)
        return (Unit(rank, group, None, name, point_to_point=True, report=report),)

    @cached_property
    def _in_calls(self) -> dict[int, str]:
        """rank → the call of torch.distributed that its main thread is in, by its own stack and in every sample; or
        the wait in which the agent saw it stand."""
        own = [s for s in self.job.facts.stacks if s.main and not s.outside and s.frames]
        seen = {rank: process.waits_in for rank, process in self.job.processes.items() if process.waits_in}
        return seen | {
            rank: _call_of(samples[0])
            for rank, samples in grouped((s.rank, s.frames) for s in own if s.rank is not None).items()
            if len(set(samples)) == 1 and len(samples) > 1 and samples[0][0].filename.endswith(_CALLS)
        }

    def _group(self, rank: int, name: str | None, desc: str | None) -> int:
        """The index of the group that a log line speaks of; a group that no dump knows is added."""
        named = self._called.get(name, ()) if name is not None else self._default
        fitting = [g for g in named if g.members is None or rank in self._members(g)]
        if name is None and not fitting:
            fitting = [g for g in self.groups if g.members is None or set(g.members) == set(self.job.ranks)]
        if fitting:
            return fitting[0].index
        default = name in (None, "0") or desc == "default_pg"
        members = tuple(self.job.ranks) if default else None
        return self._add_group("0" if name is None else name, desc or ("default_pg" if default else ""), members)

    def _share_timing(self) -> None:
        """Timing is one setting of the whole job. A dump of torch 2.2 shows it only where something is started now."""
        old = [self.of[r] for r, dumps in self.job.dumps.items() if r in self.of and not any(d.version for d in dumps)]
        if sum(mine.timing for mine in old) * 2 > len(old):
            for mine in old:
                mine.timing = True

    def _compare(self, index: int, lane: Lane) -> None:
        """A completed collective that needs everybody proves that every member launched it, and finished all before it.

        A dump without it was taken before; one that has something older as unfinished stopped being kept up to date.
        But one rank alone that is two completed collectives ahead of several others proves nothing: it is disputed.
        """
        ops = self.job.ops
        rows = lane.rows
        members = [self.of[r] for r in lane.group.members or () if r in self.of]
        dumps = [m for m in members if m.source == "dump"]
        ranks = ops.column("rank")[rows]
        heard = [m.rank for m in dumps if m.scope is not Scope.DISPUTED]
        done = (ops.column("state")[rows] == State.COMPLETED) & np.isin(ranks, heard)
        needs_all = done & self.alignment.symmetric[rows]
        finished: set[int] = set()
        for place in np.flatnonzero(np.logical_or.reduceat(needs_all, lane.starts[:-1]))[::-1][:_LOOK_BACK].tolist():
            value = int(lane.seqs[place])
            here = slice(lane.starts[place], lane.starts[place + 1])
            finished = set(ranks[here][needs_all[here]].tolist())
            whole = [m for m in dumps if m.scope is Scope.WHOLE and m.rank not in finished]
            behind = [m for m in whole if min(m.launched.get(index, 0), m.completed.get(index, 0) + 1) < value]
            if len(finished) > 1 or len(behind) <= 1 or (min(finished), index) in self._differing:
                self.proven[index] = value
                break
            for rank in finished:
                self.of[rank].scope = Scope.DISPUTED
        proven = self.proven.get(index, UNKNOWN)
        passed = int(ops.column("seq")[rows[done][-1]]) if done.any() else UNKNOWN
        for mine in members:
            if mine.source == "counters":
                self._forget(mine, index, proven + 1)
            if mine.source != "dump":
                continue
            behind_all = mine.launched.get(index, proven) < proven and mine.rank not in finished
            if behind_all and mine.scope is Scope.WHOLE:
                mine.scope = Scope.EARLIER
            if (mine.rank, index) not in self._differing:
                self._forget(mine, index, _finished_before(mine, index, proven, passed))

    def _forget(self, mine: RankProgress, group: int, before: int) -> None:
        """Take out of a record what peers finished and the rank need not be inside of still: all before `before`.

        What its own watchdog reported stays.
        """
        units = (*mine.inside, *mine.queued)
        left = [u for u in units if not _is_collective(u, group) or (u.seq or 0) >= before or _timed_out(u)]
        if len(left) == len(units):
            return
        mine.stale = mine.scope is Scope.WHOLE and mine.source == "dump"
        mine.completed[group] = max(mine.completed.get(group, UNKNOWN), before - 1)
        if mine.source != "counters":
            mine.inside, mine.queued = _split_inside(left)
            return
        if mine.launched.get(group, UNKNOWN) >= before and all(u.group != group for u in left):
            left.append(Unit(mine.rank, group, before))
        mine.inside = tuple(left)

    # ---- asking ------------------------------------------------------------------------------------------------------

    def group_of(self, report: WatchdogReport) -> int:
        """The group that a log line speaks of."""
        return self._group_of_report[id(report)]

    def place(self, rank: int, group: int, seq: int, at_ns: int | None = None) -> Place:
        """Where `rank` is with respect to collective `seq` of `group`, which others launched at about `at_ns`."""
        mine = self.of.get(rank)
        if mine is None or not mine.known:
            return Place.NOT_KNOWN
        if mine.source == "counters":
            return self._place_from_counters(mine, group, seq)
        if mine.scope is Scope.DISPUTED and seq > self.proven.get(group, UNKNOWN):
            return Place.NOT_KNOWN
        row = self.alignment.row_of(rank, group, seq)
        launched = mine.launched.get(group, UNKNOWN)
        if row is not None:
            if self.job.ops.column("state")[row] == State.COMPLETED or seq <= mine.completed.get(group, UNKNOWN):
                return Place.COMPLETED
            return Place.INSIDE if any(u.group == group and u.seq == seq for u in mine.inside) else Place.QUEUED
        if any(_is_collective(u, group) and u.seq == seq for u in mine.inside):
            return Place.INSIDE
        if mine.scope is Scope.CUT:
            known = group in mine.counted or seq <= launched
            return self._place_from_counters(mine, group, seq) if known else Place.NOT_KNOWN
        if mine.source == "poll":
            status = self._status(rank, group)
            counters = (None, None) if status is None else (status.last_enqueued, status.last_completed)
            return _place(seq, *counters, Place.INSIDE)
        if seq <= launched:
            return Place.COMPLETED  # it went past it; the ring has lost the entry, or the backend never recorded it
        # Where nothing of this group is left in a ring that wrapped, only an operation younger than the ring's oldest
        # entry would still be there.
        older = at_ns is not None and mine.oldest_ns is not None and at_ns < mine.oldest_ns
        lost = older and mine.first_kept and group not in mine.launched
        return Place.NOT_KNOWN if lost or mine.scope is not Scope.WHOLE else Place.NOT_LAUNCHED

    def _place_from_counters(self, mine: RankProgress, group: int, seq: int) -> Place:
        if any(u.group == group and u.seq == seq for u in mine.inside):
            return Place.INSIDE
        return _place(seq, mine.launched.get(group), mine.completed.get(group), Place.QUEUED)

    def operation(self, unit: Unit) -> Operation | None:
        return None if unit.row is None else self.job.ops[unit.row]


def _call_of(frames: tuple[Frame, ...]) -> str:
    """The call of torch.distributed that the user made, from a stack that ends in it."""
    inner = list(takewhile(lambda frame: "/torch/distributed/" in frame.filename, frames))
    public = [frame.name for frame in inner if frame.filename.endswith(_CALLS) and not frame.name.startswith("_")]
    return public[-1] if public else frames[0].name


def _finished_before(mine: RankProgress, group: int, proven: int, passed: int) -> int:
    """Up to where (exclusive) a record's unfinished operations are known to have finished.

    What peers completed may still hang on one rank alone; but where even older ones read as unfinished, its watchdog
    stopped noticing, and a cut or older dump does not say how it went on.
    """
    if mine.scope in (Scope.EARLIER, Scope.DISPUTED):
        return passed + 1
    if mine.scope is Scope.CUT:
        return proven + 1
    older = any(u.group == group and not u.point_to_point and 0 <= (u.seq or 0) < proven for u in mine.inside)
    return proven + older


def _timed_out(unit: Unit) -> bool:
    """Whether the rank's own watchdog says so. An asynchronous error may be reported for what had just finished."""
    return unit.report is not None and unit.report.kind == "timeout"


def _is_collective(unit: Unit, group: int) -> bool:
    return unit.group == group and not unit.point_to_point and unit.seq is not None


def _place(seq: int, launched: int | None, completed: int | None, unfinished: Place) -> Place:
    """Where a rank is by its counters; `unfinished` where it launched the operation and did not complete it."""
    if completed is not None and completed >= seq:
        return Place.COMPLETED
    if launched is None:
        return Place.NOT_KNOWN
    return Place.NOT_LAUNCHED if launched < seq else unfinished


def _keep_larger(counters: dict[int, int], others: Mapping[int, int | None]) -> None:
    for group, value in others.items():
        if value is not None:
            counters[group] = max(value, counters.get(group, UNKNOWN))


class _Recorded:
    """What the dumps say of how far each rank got, for all of them at once.

    By rank: `launches` says whether it launched anything, `oldest_ns` when its oldest entry was made, `units` what it
    has not finished. By the number of a rank's pair with a group: the largest collective `launched` and `completed`,
    and the `first` one that is still there.
    """

    def __init__(self, alignment: Alignment) -> None:
        ops = alignment.job.ops
        index = alignment.index
        launched = ~alignment.unlaunched
        created = ops.column("created_ns")
        seq = ops.column("seq")
        done = ops.column("state") == State.COMPLETED
        known = np.where(launched & (created != UNKNOWN), created, _FAR)
        self.launches = index.by_rank(index.largest(launched.view(np.int8)))
        self.oldest_ns = index.by_rank(index.smallest(known))
        collectives = launched & ~alignment.point_to_point & (seq >= 0)
        self.launched = index.pairs.largest(seq, collectives)
        self.first = index.pairs.smallest(seq, collectives)
        self.completed = index.pairs.largest(seq, collectives & done)
        self.units = grouped((unit.rank, unit) for unit in _unfinished_units(alignment, launched & ~done))


def _unfinished_units(alignment: Alignment, unfinished: Bools) -> Iterator[Unit]:
    """Unfinished operations in recorded order, the entries of one batch (or one coalesced call) together."""
    ops = alignment.job.ops
    rows = np.flatnonzero(unfinished)
    names = ("rank", "kind", "batch", "group", "seq", "name", "state")
    recorded = rows.tolist()
    rank, kind, batch, group, seq, name, state = (ops.column(c)[rows].tolist() for c in names)
    peers = alignment.point_to_point[rows].tolist()
    closes = int(Kind.BATCH)
    states = tuple(State)
    calls: dict[tuple[int, ...], list[int]] = {}
    for i, in_batch in enumerate(batch):
        of_call = (0, group[i], in_batch) if in_batch != UNKNOWN else (-1, i) if peers[i] else (1, group[i], seq[i])
        calls.setdefault((rank[i], *of_call), []).append(i)
    for members in calls.values():
        last = members[-1]
        inner = [i for i in members if kind[i] != closes] or members
        named = inner[0] if kind[last] == closes and len(inner) == 1 else last
        number = seq[last] if seq[last] >= 0 else None
        title = ops.tables.name(name[named])
        own = tuple([recorded[i] for i in members])
        yield Unit(rank[last], group[last], number, title, states[state[last]], own, peers[last])


def _split_inside(units: list[Unit]) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
    """What a rank is inside of: the oldest unfinished unit, and another group's oldest one if the GPU started it."""
    oldest = {unit.group: unit for unit in reversed(units)}
    inside = tuple(u for u in units if u is oldest[u.group] and (u is units[0] or u.state is State.STARTED))
    return inside, tuple(u for u in units if u not in inside)
