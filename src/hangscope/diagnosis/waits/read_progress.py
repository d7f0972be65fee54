"""How far one rank got, by its own dump, else by its counters and its log, else by the wait in which it was seen.

A rank's own dump says so best; its counters (in its dump or in its log's watchdog lines) say it roughly; otherwise it
is not known, which is a value.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import takewhile

import numpy as np

from hangscope.diagnosis.align.agreement import PEER_CALLS
from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import grouped
from hangscope.diagnosis.waits.log_groups import LogGroups
from hangscope.diagnosis.waits.rank_progress import RankProgress, Scope, Unit, split_inside
from hangscope.diagnosis.waits.recorded_progress import Recorded
from hangscope.model import UNKNOWN, CallArguments, Frame, GroupStatus, State, WatchdogReport

# Where the calls of torch.distributed are defined.
_CALLS = "/distributed_c10d.py"
_ERRORS = ("timeout", "async_error")


class ProgressReader:
    """Asks the sources of each rank in turn."""

    def __init__(self, alignment: Alignment, groups: LogGroups, disputed: Collection[int]) -> None:
        self._alignment = alignment
        self._job = alignment.job
        self._groups = groups
        self._disputed = disputed
        # Groups in which point-to-point was used: their counters mix two scales and say nothing about collectives.
        mixed = np.bincount(self._job.ops.column("group")[alignment.point_to_point])
        self._mixed = set(np.flatnonzero(mixed).tolist())
        self._recorded = Recorded(alignment)
        spoken = [report for report in self._job.facts.watchdog if report.kind in (*_ERRORS, "status")]
        self._reports = grouped((report.rank, report) for report in spoken)
        self._counted = grouped(self._job.status)

    def read(self, rank: int) -> RankProgress:
        reports = self._reports.get(rank, [])
        counted = self._counted.get(rank, [])
        mine = self._from_dump(rank, reports, counted)
        if mine is None:
            mine = self._from_counters(rank, reports, counted)
        elif mine.scope is Scope.DISPUTED and reports:
            mine = self._from_counters(rank, reports, [])
        mine = mine or RankProgress(rank, "none")
        mine.inside = mine.inside or self._unrecorded(rank, reports)
        return mine

    def status(self, rank: int, group: int) -> GroupStatus | None:
        """A rank's own counters for a group, where they count collectives."""
        status = self._job.status.get((rank, group))
        return None if status is None or status.counts_op_ids or group in self._mixed else status

    # ---- its dump ----------------------------------------------------------------------------------------------------

    def _from_dump(self, rank: int, reports: list[WatchdogReport], counted: list[int]) -> RankProgress | None:
        dumps = self._job.dumps.get(rank, ())
        if not any(dump.records for dump in dumps):
            return None
        poll = all(dump.role == "poll" for dump in dumps)
        mine = RankProgress(rank, "poll" if poll else "dump", timing=any(dump.timing for dump in dumps))
        if not all(dump.complete for dump in dumps):
            mine.scope = Scope.CUT
        elif rank in self._disputed:
            mine.scope = Scope.DISPUTED
        if not self._recorded.launches.get(rank):
            return mine if poll else None
        self._fill_from_record(mine)
        units = self._recorded.units.get(rank, [])
        mine.inside, mine.queued = split_inside([*self._overwritten(mine, units, reports), *units])
        if mine.scope is Scope.CUT:
            self._add_counters(mine, self._from_counters(rank, reports, counted))
        return mine

    def _fill_from_record(self, mine: RankProgress) -> None:
        """How far its entries reach in each of its groups."""
        recorded = self._recorded
        mine.oldest_ns = recorded.oldest_ns(mine.rank)
        wrapped = self._job.wrapped(mine.rank)
        for group, pair in self._alignment.index.pairs.of_rank[mine.rank]:
            if recorded.launched[pair] < 0:
                continue
            mine.launched[group] = recorded.launched[pair]
            if recorded.completed[pair] >= 0:
                mine.completed[group] = recorded.completed[pair]
            if wrapped:
                mine.first_kept[group] = recorded.first[pair]

    def _overwritten(self, mine: RankProgress, units: list[Unit], reports: list[WatchdogReport]) -> list[Unit]:
        """Operations that a rank still waits in, although it queued so much behind them that its ring lost them.

        The counters know: the one after the last completed is what it is inside of, and the oldest entry is later.
        """
        lost: list[Unit] = []
        oldest = {unit.group: unit for unit in reversed(units) if not unit.point_to_point}
        for group, first in mine.first_kept.items():
            status = self.status(mine.rank, group)
            if status is None or status.last_completed is None:
                continue
            waits_in = status.last_completed + 1
            if group in oldest and oldest[group].seq == first > waits_in > 0:
                named = [report.operation for report in reports if report.seq == waits_in and report.operation]
                names = {unit.name for unit in units if unit.group == group}
                name = named[0] if named else names.pop() if len(names) == 1 else "collective"
                lost.append(Unit(mine.rank, group, waits_in, name))
        return lost

    def _add_counters(self, mine: RankProgress, counters: RankProgress | None) -> None:
        """What a cut dump no longer shows, its counters and the rank's log may."""
        if counters is None:
            return
        seen = {(unit.group, unit.seq) for unit in (*mine.inside, *mine.queued)}
        lost = [unit for unit in counters.inside if (unit.group, unit.seq) not in seen]
        mine.inside += tuple(unit for unit in lost if (unit.seq or 0) > mine.launched.get(unit.group, UNKNOWN))
        mine.counted = set(counters.launched)
        _keep_larger(mine.launched, counters.launched)
        _keep_larger(mine.completed, counters.completed)

    # ---- its counters and its log ------------------------------------------------------------------------------------

    def _from_counters(self, rank: int, reports: list[WatchdogReport], counted: list[int]) -> RankProgress | None:
        """From the watchdog's lines, and from the counters of a dump without entries for the groups in `counted`."""
        mine = RankProgress(rank, "counters")
        for group in counted:
            status = self.status(rank, group)
            if status is not None:
                _keep_larger(mine.launched, {group: status.last_enqueued})
                _keep_larger(mine.completed, {group: status.last_completed})
        for report in reports:
            group = self._groups.of_report(report)
            if group not in self._mixed:
                _keep_larger(mine.launched, {group: report.last_enqueued})
                _keep_larger(mine.completed, {group: report.last_completed})
        inside = self._reported_units(reports)
        inside += _counted_units(mine, without={unit.group for unit in inside})
        # An asynchronous error may be reported for an operation that had just finished: the counters know better.
        left = [unit for unit in inside if (unit.seq or 0) > mine.completed.get(unit.group, UNKNOWN)]
        mine.inside = tuple(replace(u, state=self._counted_state(u)) if u.group in counted else u for u in left)
        return mine if reports or mine.launched else None

    def _reported_units(self, reports: list[WatchdogReport]) -> list[Unit]:
        """What the rank's watchdog says that it is inside of."""
        found: dict[tuple[int, int], Unit] = {}
        for report in reports:
            if report.kind in _ERRORS and report.seq is not None:
                group = self._groups.of_report(report)
                # The watchdog's line names no peers, so nobody can be said to be missing from such a call.
                peers = report.operation in PEER_CALLS
                name = report.operation or "collective"
                unit = Unit(report.rank, group, report.seq, name, point_to_point=peers, report=report)
                found.setdefault((group, report.seq), unit)
        return list(found.values())

    def _counted_state(self, unit: Unit) -> State:
        """Whether its counters say that a rank's kernel started, where the recorder timed them."""
        status = self.status(unit.rank, unit.group)
        timed = any(dump.timing for dump in self._job.dumps.get(unit.rank, ()))
        began = timed and status is not None and (status.last_started or UNKNOWN) >= (unit.seq or 0)
        return State.STARTED if began else State.UNKNOWN

    # ---- where it was seen to wait -----------------------------------------------------------------------------------

    def _unrecorded(self, rank: int, reports: list[WatchdogReport]) -> tuple[Unit, ...]:
        """What a rank waits in without a record. Gloo records no point-to-point calls, and its calls block: a rank that
        raised waited in something, and so does one without a dump whose own stack ends inside such a call."""
        raised = [report for report in reports if report.frames and report.kind in _ERRORS and report.seq is None]
        gloo = all(dump.backend in ("gloo", "") for dump in self._job.dumps.get(rank, ()))  # a poll names none
        process = self._job.processes.get(rank)
        # What it printed while it was being stopped is not what it did when it was seen to wait in nothing.
        outside = process is not None and process.waits_in == ""
        report = raised[-1] if raised and gloo and not outside else None
        if report is not None:
            name = report.operation or "an operation that was not recorded"
        elif rank in self.in_calls:
            name = self.in_calls[rank]
        else:
            return ()
        given = self._arguments(rank, name)
        of_group = given.group if given is not None and not given.ranks else None
        group = self._groups.find(rank, of_group, None)
        unit = Unit(rank, group, None, name, point_to_point=True, report=report, arguments=given)
        if unit.peer is not None and given is not None:
            tag = f" (tag {given.tag})" if given.tag else ""
            unit = replace(unit, name=f"{name} {rank}{'<-' if unit.receives else '->'}{unit.peer}{tag}")
        return (unit,)

    def _arguments(self, rank: int, name: str) -> CallArguments | None:
        """What the call was given that a rank waits in, by the newest look."""
        mine = [call for call in self._job.facts.calls if call.rank == rank]
        newest = max((call.sample for call in mine), default=0)
        return next((call for call in mine if call.sample == newest and call.function == name), None)

    @cached_property
    def in_calls(self) -> dict[int, str]:
        """rank → the call of torch.distributed that its main thread is in, by its own stack and in every sample; or
        the wait in which the agent saw it."""
        own = [s for s in self._job.facts.stacks if s.main and not s.outside and s.frames]
        seen = {rank: process.waits_in for rank, process in self._job.processes.items() if process.waits_in}
        for rank, samples in grouped((s.rank, s.frames) for s in own if s.rank is not None).items():
            alike = len(samples) > 1 and len(set(samples)) == 1
            if alike and samples[0][0].filename.endswith(_CALLS):
                seen[rank] = _call_of(samples[0])
        return seen


def _counted_units(mine: RankProgress, without: set[int]) -> list[Unit]:
    """What a rank is inside of by its counters: in each group, the one after the last completed."""
    found = []
    for group, launched in mine.launched.items():
        completed = mine.completed.get(group, UNKNOWN)
        if launched > completed >= 0 and group not in without:
            found.append(Unit(mine.rank, group, completed + 1))
    return found


def _call_of(frames: tuple[Frame, ...]) -> str:
    """The call of torch.distributed that the user made, from a stack that ends in it."""
    inner = list(takewhile(lambda frame: "/torch/distributed/" in frame.filename, frames))
    public = [frame.name for frame in inner if frame.filename.endswith(_CALLS) and not frame.name.startswith("_")]
    return public[-1] if public else frames[0].name


def _keep_larger(counters: dict[int, int], others: Mapping[int, int | None]) -> None:
    for group, value in others.items():
        if value is not None:
            counters[group] = max(value, counters.get(group, UNKNOWN))
