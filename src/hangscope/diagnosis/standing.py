"""Where each rank stands: what it is inside of, what it queued behind that, what it never launched.

A rank's own dump says so best; its log's watchdog lines say it roughly; otherwise it is unknown, which is a value.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from itertools import takewhile

import numpy as np

from hangscope.diagnosis.align import Alignment, Ints, is_guessed
from hangscope.diagnosis.joining import Joining, joinings
from hangscope.model import UNKNOWN, Frame, Group, Job, Kind, Operation, Operations, State, WatchdogReport


class Place(Enum):
    """Where a rank is with respect to one operation of one of its groups."""

    COMPLETED = "completed"
    INSIDE = "inside"
    """It launched it, and this is what it waits in."""
    QUEUED = "queued"
    """It launched it, but is still inside something earlier."""
    NOT_LAUNCHED = "not launched"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing a rank launched and has not finished: a collective, a point-to-point call, or a batch of them."""

    rank: int
    group: int
    seq: int | None
    name: str
    state: State
    rows: tuple[int, ...]
    """Rows of the operations inside; the last one stands for the unit. Empty where only a log speaks of it."""
    point_to_point: bool = False
    report: WatchdogReport | None = None

    @property
    def row(self) -> int | None:
        return self.rows[-1] if self.rows else None


@dataclass(slots=True)
class Standing:
    """One rank's position in all its groups."""

    rank: int
    source: str
    """"dump", "poll", "log" or "none"."""
    inside: tuple[Unit, ...] = ()
    """What it waits in: the oldest unfinished unit, and the oldest started one of every other group."""
    queued: tuple[Unit, ...] = ()
    launched: dict[int, int] = field(default_factory=dict)
    """Per group the largest collective sequence number that it launched."""
    completed: dict[int, int] = field(default_factory=dict)
    first_kept: dict[int, int] = field(default_factory=dict)
    oldest_ns: int | None = None
    timing: bool = False
    whole: bool = True
    """False for a truncated dump, whose newest entries are the ones that are lost."""
    outdated: bool = False
    """Its peers finished operations that need this rank and that its dump does not have: it was taken earlier."""

    @property
    def known(self) -> bool:
        return self.source != "none"

    @property
    def idle(self) -> bool:
        """It has launched nothing that is unfinished."""
        return self.known and not self.inside


_CALLS = "/distributed_c10d.py"
"""Where the calls of torch.distributed are defined."""
_SYMMETRIC = re.compile(r"all_?reduce|all_?gather|reduce_scatter|barrier", re.IGNORECASE)


@cache
def is_symmetric(name: str) -> bool:
    """Whether nobody finishes the operation before everybody has joined it (NCCL and Gloo), coalesced or not."""
    return _SYMMETRIC.search(name) is not None


def symmetric_names(ops: Operations) -> list[int]:
    """The ids of the names of such operations, for whole columns at once."""
    return [index for index, name in enumerate(ops.tables.names) if is_symmetric(name)]


class Standings:
    """The standings of all ranks, and the place of any rank at any operation."""

    def __init__(self, alignment: Alignment) -> None:
        self.alignment = alignment
        self.job = alignment.job
        self.groups: list[Group] = list(self.job.groups)
        self.of: dict[int, Standing] = {}
        mixed = _groups_with_peers(alignment)
        self._mixed = mixed
        reports = _reports_by_rank(self.job)
        for rank in self.job.ranks:
            standing = self._from_dump(rank, reports.get(rank, []))
            if standing is None:
                standing = self._from_log(rank, reports.get(rank, []), mixed)
            self.of[rank] = standing = standing or Standing(rank, "none")
            standing.inside = standing.inside or self._unrecorded(rank, reports.get(rank, []))
        self.joining = self._join()
        self._share_timing()
        self._mark_outdated()

    # ---- building ----------------------------------------------------------------------------------------------------

    def _from_dump(self, rank: int, reports: list[WatchdogReport]) -> Standing | None:
        job, ops = self.job, self.job.ops
        dumps = job.dumps.get(rank, ())
        if not dumps or not any(d.records for d in dumps):
            return None
        rows = ops.rows(rank=rank)
        rows = rows[~self.alignment.unlaunched[rows]]
        poll = all(d.role == "poll" for d in dumps)
        standing = Standing(
            rank,
            "poll" if poll else "dump",
            timing=any(d.timing for d in dumps),
            whole=all(d.complete for d in dumps),
        )
        if not len(rows):
            return None if not poll else standing
        created = ops.column("created_ns")[rows]
        known = created[created != UNKNOWN]
        standing.oldest_ns = int(known.min()) if len(known) else None
        peers = self.alignment.point_to_point[rows]
        group, seq, state = ops.column("group")[rows], ops.column("seq")[rows], ops.column("state")[rows]
        wrapped = job.wrapped(rank)
        for g in np.unique(group[~peers & (seq >= 0)]).tolist():
            mine = (group == g) & ~peers & (seq >= 0)
            standing.launched[g] = int(seq[mine].max())
            done = mine & (state == State.COMPLETED)
            if done.any():
                standing.completed[g] = int(seq[done].max())
            if wrapped:
                standing.first_kept[g] = int(seq[mine].min())
        units = _unfinished_units(self.alignment, rank, rows[state != State.COMPLETED])
        overwritten = self._overwritten(standing, units, reports)
        standing.inside, standing.queued = _split_inside([*overwritten, *units])
        return standing

    def _overwritten(self, standing: Standing, units: list[Unit], reports: list[WatchdogReport]) -> list[Unit]:
        """Operations that a rank still waits in, although it queued so much behind them that its ring lost them.

        The counters know: the one after the last completed is what it is inside of, and the oldest entry is later.
        """
        lost: list[Unit] = []
        oldest = {unit.group: unit for unit in reversed(units) if not unit.point_to_point}
        for group, first in standing.first_kept.items():
            status = self.job.status.get((standing.rank, group))
            if status is None or status.last_completed is None or status.counts_op_ids or group in self._mixed:
                continue
            waits_in = status.last_completed + 1
            if group in oldest and oldest[group].seq == first > waits_in > 0:
                named = [r.operation for r in reports if r.seq == waits_in and r.operation]
                names = {unit.name for unit in units if unit.group == group}
                name = named[0] if named else names.pop() if len(names) == 1 else "collective"
                lost.append(Unit(standing.rank, group, waits_in, name, State.UNKNOWN, ()))
        return lost

    def _from_log(self, rank: int, reports: list[WatchdogReport], mixed: set[int]) -> Standing | None:
        if not reports:
            return None
        standing = Standing(rank, "log")
        inside: list[Unit] = []
        for report in reports:
            group = self.group_of(rank, report.group_name, report.group_desc)
            if report.last_enqueued is not None and group not in mixed:
                standing.launched[group] = max(standing.launched.get(group, UNKNOWN), report.last_enqueued)
            if report.last_completed is not None and group not in mixed:
                standing.completed[group] = max(standing.completed.get(group, UNKNOWN), report.last_completed)
            if report.kind in ("timeout", "async_error") and report.seq is not None:
                unit = Unit(
                    rank,
                    group,
                    report.seq,
                    report.operation or "collective",
                    State.UNKNOWN,
                    (),
                    # The watchdog's line names no peers, so nobody can be said to be missing from such a call.
                    point_to_point=report.operation in ("send", "recv", "coalesced"),
                    report=report,
                )
                if all((u.group, u.seq) != (group, report.seq) for u in inside):
                    inside.append(unit)
        for group, launched in standing.launched.items():
            completed = standing.completed.get(group, UNKNOWN)
            if launched > completed >= 0 and all(u.group != group for u in inside):
                inside.append(Unit(rank, group, completed + 1, "collective", State.UNKNOWN, ()))
        # An asynchronous error may be reported for an operation that had just finished: the counters know better.
        standing.inside = tuple(u for u in inside if (u.seq or 0) > standing.completed.get(u.group, UNKNOWN))
        return standing

    def _join(self) -> dict[int, Joining]:
        """Let the ranks that make a communicator wait in that. The result has a group of its own for each."""
        found: dict[int, Joining] = {}
        for joining in joinings(self.job, {rank for rank, standing in self.of.items() if not standing.inside}):
            waiting = [
                rank for rank in joining.begun if all(not u.rows and u.seq is None for u in self.of[rank].inside)
            ]
            if not waiting:
                continue
            group = Group(
                index=len(self.groups),
                name=joining.comm_id,
                desc=f"a communicator of {joining.size} ranks",
                members=joining.members,
                inferred=True,
            )
            self.groups.append(group)
            found[group.index] = joining
            for rank in waiting:
                standing = self.of[rank]
                name = self._in_calls.get(rank, "a communicator")
                standing.inside = (Unit(rank, group.index, None, name, State.UNKNOWN, ()),)
                standing.source = "log" if standing.source == "none" else standing.source
        return found

    def _unrecorded(self, rank: int, reports: list[WatchdogReport]) -> tuple[Unit, ...]:
        """What a rank waits in without a record. Gloo records no point-to-point calls, and its calls block: a rank that
        raised waited in something, and so does one without a dump whose own stack ends inside such a call."""
        raised = [r for r in reports if r.frames and r.kind in ("timeout", "async_error") and r.seq is None]
        gloo = all(d.backend == "gloo" for d in self.job.dumps.get(rank, ()))
        if raised and gloo:
            name = raised[-1].operation or "an operation that was not recorded"
        elif rank in self._in_calls:
            name = self._in_calls[rank]
        else:
            return ()
        report = raised[-1] if raised and gloo else None
        return (Unit(rank, self.group_of(rank, None, None), None, name, State.UNKNOWN, (), True, report),)

    @cached_property
    def _in_calls(self) -> dict[int, str]:
        """rank → the call of torch.distributed that its main thread is in, by its own stack and in every sample."""
        places: dict[int, list[tuple[Frame, ...]]] = {}
        for stack in self.job.facts.stacks:
            if stack.rank is not None and stack.main and not stack.outside and stack.frames:
                places.setdefault(stack.rank, []).append(stack.frames)
        return {
            rank: _call_of(samples[0])
            for rank, samples in places.items()
            if len(set(samples)) == 1 and len(samples) > 1 and samples[0][0].filename.endswith(_CALLS)
        }

    def group_of(self, rank: int, name: str | None, desc: str | None) -> int:
        """The index of the group that a log line speaks of; a group that no dump knows is added."""
        fitting = [
            g.index
            for g in self.groups
            if (name is None and g.desc in ("default_pg", "")) or (name is not None and g.name == name)
            if g.members is None or rank in g.members
        ]
        if name is None and not fitting:
            fitting = [g.index for g in self.groups if g.members is None or set(g.members) == set(self.job.ranks)]
        if fitting:
            return fitting[0]
        default = name is None or desc == "default_pg" or name == "0"
        added = Group(
            index=len(self.groups),
            name=name if name is not None else "0",
            desc=desc or ("default_pg" if default else ""),
            members=tuple(self.job.ranks) if default else None,
            inferred=True,
        )
        self.groups.append(added)
        return added.index

    def _share_timing(self) -> None:
        """Timing is one setting of the whole job. A dump of torch 2.2 shows it only where something is started now."""
        old = [self.of[r] for r, dumps in self.job.dumps.items() if r in self.of and not any(d.version for d in dumps)]
        if sum(standing.timing for standing in old) * 2 > len(old):
            for standing in old:
                standing.timing = True

    def _mark_outdated(self) -> None:
        """A dump without an operation that a peer finished and that needs everybody was taken before the peer's."""
        ops = self.job.ops
        symmetric = symmetric_names(ops)
        state, name, ranks = ops.column("state"), ops.column("name"), ops.column("rank")
        for index, lane in self.alignment.lanes.items():
            if is_guessed(lane.group):
                continue  # what one of the groups behind the number finished says nothing about another
            rows = lane.rows[(state[lane.rows] == State.COMPLETED) & np.isin(name[lane.rows], symmetric)]
            if not len(rows):
                continue
            finished = int(ops.column("seq")[rows].max())
            at_finish = set(ranks[rows[ops.column("seq")[rows] == finished]].tolist())
            for rank in lane.group.members or ():
                standing = self.of.get(rank)
                if standing is None or standing.source != "dump" or not standing.whole or rank in at_finish:
                    continue
                if standing.launched.get(index, UNKNOWN) < finished and index in standing.launched:
                    standing.outdated = True

    # ---- asking ------------------------------------------------------------------------------------------------------

    def place(self, rank: int, group: int, seq: int, at_ns: int | None = None) -> Place:
        """Where `rank` is with respect to collective `seq` of `group`, which others launched at about `at_ns`."""
        standing = self.of.get(rank)
        if standing is None or not standing.known:
            return Place.UNKNOWN
        row = self.alignment.row_of(rank, group, seq)
        if row is not None:
            if self.job.ops.column("state")[row] == State.COMPLETED:
                return Place.COMPLETED
            return Place.INSIDE if any(u.group == group and u.seq == seq for u in standing.inside) else Place.QUEUED
        if standing.source == "log":
            return self._place_from_counters(standing, group, seq)
        if any(u.group == group and u.seq == seq and not u.point_to_point for u in standing.inside):
            return Place.INSIDE
        if standing.source == "poll" or not standing.whole:
            return self._place_from_status(rank, group, seq)
        if seq <= standing.launched.get(group, UNKNOWN):
            return Place.COMPLETED  # it went past it; the ring has lost the entry, or the backend never recorded it
        if standing.outdated:
            return Place.UNKNOWN
        if group not in standing.launched and standing.first_kept and _older(at_ns, standing.oldest_ns):
            # Nothing of this group is left in a ring that wrapped: only an operation younger than the ring's oldest
            # entry would still be there.
            return Place.UNKNOWN
        return Place.NOT_LAUNCHED

    def _place_from_counters(self, standing: Standing, group: int, seq: int) -> Place:
        if any(u.group == group and u.seq == seq for u in standing.inside):
            return Place.INSIDE
        launched, completed = standing.launched.get(group), standing.completed.get(group)
        if completed is not None and completed >= seq:
            return Place.COMPLETED
        if launched is None:
            return Place.UNKNOWN
        return Place.NOT_LAUNCHED if launched < seq else Place.QUEUED

    def _place_from_status(self, rank: int, group: int, seq: int) -> Place:
        status = self.job.status.get((rank, group))
        if status is None or status.last_enqueued is None or status.counts_op_ids or group in self._mixed:
            return Place.UNKNOWN
        if status.last_enqueued < seq:
            return Place.NOT_LAUNCHED
        if status.last_completed is not None and status.last_completed >= seq:
            return Place.COMPLETED
        return Place.INSIDE

    def operation(self, unit: Unit) -> Operation | None:
        return None if unit.row is None else self.job.ops[unit.row]


def _call_of(frames: tuple[Frame, ...]) -> str:
    """The call of torch.distributed that the user made, from a stack that ends in it."""
    inner = list(takewhile(lambda frame: "/torch/distributed/" in frame.filename, frames))
    public = [frame.name for frame in inner if frame.filename.endswith(_CALLS) and not frame.name.startswith("_")]
    return public[-1] if public else frames[0].name


def _older(at_ns: int | None, oldest_ns: int | None) -> bool:
    return at_ns is not None and oldest_ns is not None and at_ns < oldest_ns


def _groups_with_peers(alignment: Alignment) -> set[int]:
    """Groups in which point-to-point was used: their counters mix two scales and say nothing about collectives."""
    return set(np.unique(alignment.job.ops.column("group")[alignment.point_to_point]).tolist())


def _reports_by_rank(job: Job) -> dict[int, list[WatchdogReport]]:
    found: dict[int, list[WatchdogReport]] = defaultdict(list)
    for report in job.facts.watchdog:
        if report.kind in ("timeout", "async_error", "status"):
            found[report.rank].append(report)
    return found


def _unfinished_units(alignment: Alignment, rank: int, rows: Ints) -> list[Unit]:
    """Unfinished operations in recorded order, the entries of one batch (or one coalesced call) together."""
    ops = alignment.job.ops
    kind, batch, group, seq = (ops.column(c) for c in ("kind", "batch", "group", "seq"))
    names = ops.column("name")
    units: list[Unit] = []
    pending: dict[tuple[int, ...], list[int]] = {}
    for row in rows.tolist():
        peer = bool(alignment.point_to_point[row])
        key: tuple[int, ...]
        if batch[row] != UNKNOWN:
            key = (0, int(group[row]), int(batch[row]))
        elif peer:
            key = (1, row)
        else:
            key = (2, int(group[row]), int(seq[row]))
        pending.setdefault(key, []).append(row)
    for members in pending.values():
        last = members[-1]
        inner = [r for r in members if kind[r] != Kind.BATCH] or members
        units.append(
            Unit(
                rank=rank,
                group=int(group[last]),
                seq=int(seq[last]) if seq[last] >= 0 else None,
                name=ops.tables.name(int(names[inner[0] if kind[last] == Kind.BATCH and len(inner) == 1 else last])),
                state=State(int(ops.column("state")[last])),
                rows=tuple(members),
                point_to_point=bool(alignment.point_to_point[last]),
            )
        )
    return units


def _split_inside(units: list[Unit]) -> tuple[tuple[Unit, ...], tuple[Unit, ...]]:
    """What a rank is inside of: the oldest unfinished unit, and another group's oldest one if the GPU started it."""
    inside: list[Unit] = []
    seen: set[int] = set()
    for index, unit in enumerate(units):
        if unit.group in seen:
            continue
        seen.add(unit.group)
        if index == 0 or unit.state is State.STARTED:
            inside.append(unit)
    return tuple(inside), tuple(u for u in units if u not in inside)
