"""How far each rank got: what it is inside of, what it queued behind that, what it never launched.

A dump says "never launched" only of what lies within its scope: a cut dump is silent after the cut, one that was taken
before its peers' is silent about what they did since, and a disputed one about all that it does not have.
"""

from collections.abc import Collection

from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.waits.comm_init import CommInit, comm_inits
from hangscope.diagnosis.waits.log_groups import LogGroups
from hangscope.diagnosis.waits.proven_progress import compare
from hangscope.diagnosis.waits.rank_progress import Place, RankProgress, Scope, Unit
from hangscope.diagnosis.waits.read_progress import ProgressReader
from hangscope.model import UNKNOWN, Group, Operation, State, WatchdogReport

__all__ = ["Place", "Progress", "RankProgress", "Scope", "Unit"]


class Progress:
    """The progress of all ranks, and the place of any rank at any operation.

    `proven`: per group the last collective that every member is known to have launched, because several completed it.
    `comm_inits`: by a group of its own, each communicator whose init was begun and not completed.
    """

    def __init__(self, alignment: Alignment, disputed: Collection[int], differing: Collection[tuple[int, int]]) -> None:
        """`differing`: (rank, group) that ran something else than their peers; what those completed proves nothing."""
        self.alignment = alignment
        self.job = alignment.job
        self._log_groups = LogGroups(self.job)
        self._reader = ProgressReader(alignment, self._log_groups, disputed)
        self.of: dict[int, RankProgress] = {rank: self._reader.read(rank) for rank in self.job.ranks}
        self.comm_inits = self._inits()
        self._share_timing()
        self.proven: dict[int, int] = {}
        for group, lane in alignment.lanes.items():
            # What one of the groups behind a number finished says nothing about another.
            if not members_not_recorded(lane.group):
                proven = compare(alignment, self.of, differing, lane)
                if proven != UNKNOWN:
                    self.proven[group] = proven

    @property
    def groups(self) -> list[Group]:
        """The job's groups, and those that only logs speak of."""
        return self._log_groups.all

    def _inits(self) -> dict[int, CommInit]:
        """Let the ranks in a communicator's init wait in that. Each init has a group of its own."""
        found: dict[int, CommInit] = {}
        for init in comm_inits(self.job, {rank for rank, mine in self.of.items() if not mine.inside}):
            waiting = [rank for rank in init.begun if all(not u.rows and u.seq is None for u in self.of[rank].inside)]
            if not waiting:
                continue
            group = self._log_groups.add(init.comm_id, f"a communicator of {init.size} ranks", init.members)
            found[group] = init
            for rank in waiting:
                mine = self.of[rank]
                mine.inside = (Unit(rank, group, None, self._reader.in_calls.get(rank, "communicator init")),)
                mine.source = "counters" if mine.source == "none" else mine.source
        return found

    def _share_timing(self) -> None:
        """Timing is one setting of the whole job. A dump of torch 2.2 shows it only where something is started now."""
        old = [self.of[r] for r, dumps in self.job.dumps.items() if r in self.of and not any(d.version for d in dumps)]
        if sum(mine.timing for mine in old) * 2 > len(old):
            for mine in old:
                mine.timing = True

    # ---- asking ------------------------------------------------------------------------------------------------------

    def group_of(self, report: WatchdogReport) -> int:
        """The group that a log line speaks of."""
        return self._log_groups.of_report(report)

    def operation(self, unit: Unit) -> Operation | None:
        return None if unit.row is None else self.job.ops[unit.row]

    def place(self, rank: int, group: int, seq: int, at_ns: int | None = None) -> Place:
        """Where `rank` is with respect to collective `seq` of `group`, which others launched at about `at_ns`."""
        mine = self.of.get(rank)
        if mine is None or not mine.known:
            return Place.NOT_KNOWN
        if mine.source == "counters":
            return _place_by_counters(mine, group, seq)
        if mine.scope is Scope.DISPUTED and seq > self.proven.get(group, UNKNOWN):
            return Place.NOT_KNOWN
        row = self.alignment.row_of(rank, group, seq)
        if row is not None:
            done = self.job.ops.column("state")[row] == State.COMPLETED or seq <= mine.completed.get(group, UNKNOWN)
            inside = Place.INSIDE if mine.is_inside(group, seq) else Place.QUEUED
            return Place.COMPLETED if done else inside
        if any(unit.is_collective_of(group) and unit.seq == seq for unit in mine.inside):
            return Place.INSIDE
        return self._place_without_record(mine, group, seq, at_ns)

    def _place_without_record(self, mine: RankProgress, group: int, seq: int, at_ns: int | None) -> Place:
        """Where a rank is with a collective that its dump does not have."""
        launched = mine.launched.get(group, UNKNOWN)
        if mine.scope is Scope.CUT:
            known = group in mine.counted or seq <= launched
            return _place_by_counters(mine, group, seq) if known else Place.NOT_KNOWN
        if mine.source == "poll":
            status = self._reader.status(mine.rank, group)
            if status is None:
                return Place.NOT_KNOWN
            return _place(seq, status.last_enqueued, status.last_completed, Place.INSIDE)
        if seq <= launched:
            return Place.COMPLETED  # it went past it; the ring has lost the entry, or the backend never recorded it
        # Where nothing of this group is left in a ring that wrapped, only an operation younger than the ring's oldest
        # entry would still be there.
        older = at_ns is not None and mine.oldest_ns is not None and at_ns < mine.oldest_ns
        lost = older and mine.first_kept and group not in mine.launched
        return Place.NOT_KNOWN if lost or mine.scope is not Scope.WHOLE else Place.NOT_LAUNCHED


def _place_by_counters(mine: RankProgress, group: int, seq: int) -> Place:
    if mine.is_inside(group, seq):
        return Place.INSIDE
    return _place(seq, mine.launched.get(group), mine.completed.get(group), Place.QUEUED)


def _place(seq: int, launched: int | None, completed: int | None, unfinished: Place) -> Place:
    """Where a rank is by its counters; `unfinished` where it launched the operation and did not complete it."""
    if completed is not None and completed >= seq:
        return Place.COMPLETED
    if launched is None:
        return Place.NOT_KNOWN
    return Place.NOT_LAUNCHED if launched < seq else unfinished
