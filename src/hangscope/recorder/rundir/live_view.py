"""What the nodes' status files say together: who is ahead, who is behind, for how long, and who waits for which."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from hangscope.errors import NotFoundError
from hangscope.incident.layout import VERDICT_JSON
from hangscope.recorder.rundir import peer_files, run_directory
from hangscope.recorder.rundir.peer_files import CaptureNote, GroupCounter, NodeStatus, RankRow, VerdictNote

MOST_STEPS = 10_000_000
HELD_S = 0.8
"""Of the time that others wait for a rank: what is shorter, looks a second apart cannot tell."""
_Key = tuple[str, str, str]
"""Recorder, description and name: many groups of a mesh share one description."""


@dataclass(frozen=True, slots=True)
class RankLine:
    """One rank now. `waits` is its oldest unfinished operation, for `waits_s` seconds; `for_ranks` have not joined."""

    rank: int
    node: str
    pid: int
    state: str
    waits: str = ""
    waits_s: float | None = None
    group: str = ""
    exit_status: int | None = None
    silent_s: float | None = None
    rate: float | None = None
    for_ranks: tuple[int, ...] = ()
    code: str = ""
    role: str = ""

    @property
    def gone(self) -> bool:
        return self.state == "gone"


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One group now: the newest operation anybody has launched, who has not launched it, how long nothing has moved."""

    group: str
    recorder: str
    newest: int
    completed: int
    members: int
    behind: tuple[int, ...]
    still_s: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """A rank that others wait for, while it waits for nobody itself: so many, in what, and the longest of them."""

    rank: int
    node: str
    state: str
    waiting: int
    longest_s: float
    operation: str
    code: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class LiveView:
    job: str
    attempt: str
    world_size: int | None
    ranks: tuple[RankLine, ...]
    groups: tuple[GroupLine, ...]
    captures: tuple[CaptureNote, ...]
    stale_nodes: tuple[str, ...]
    ended: bool
    waited_for: tuple[WaitedFor, ...] = ()
    threshold_s: float | None = None
    verdict: VerdictNote | None = None
    """That of the newest capture."""
    late: tuple[int, ...] = ()
    """Ranks for which others of their node and group were seen to wait."""


def view(root: Path) -> LiveView:
    """The run in `root` as its agents last described it."""
    states = run_directory.statuses(root)
    if not states:
        raise NotFoundError(
            f"{root}: not a directory of `hangscope run`", hint="give the directory that `hangscope run` uses"
        )
    now = time.time()
    stale = tuple(state.node for folder, state in states if not state.ended and _is_stale(folder, now))
    found = assemble([state for _, state in states], stale, now)
    return replace(found, verdict=_newest_verdict(root, found.captures))


def _newest_verdict(root: Path, captures: tuple[CaptureNote, ...]) -> VerdictNote | None:
    """Of the run's own incidents: a status may name any directory."""
    place = Path(os.path.abspath(root))
    for capture in reversed(captures):
        incident = Path(capture.incident)
        beside = incident.parent == place.parent and incident.name.startswith(f"{place.name}.")
        if incident == place or place in incident.parents or beside:
            found = peer_files.verdict_note(incident, VERDICT_JSON)
            if found is not None:
                return found
    return None


def assemble(states: list[NodeStatus], stale: tuple[str, ...], now: float) -> LiveView:
    """One picture of what all agents said."""
    rows = [(state, row) for state in states for row in state.live]
    members = _members(row for _, row in rows)
    absent = _Absent(members)
    ranks = tuple(sorted((_rank(state, row, absent, now) for state, row in rows), key=lambda line: line.rank))
    captures = {(each.at, each.incident): each for state in states for each in state.captures}
    thresholds = [state.threshold_s for state in states if state.threshold_s is not None]
    return LiveView(
        job=states[0].job,
        attempt=states[0].attempt,
        world_size=max((state.world_size or 0 for state in states), default=0) or None,
        ranks=ranks,
        groups=_groups(members),
        captures=tuple(captures[at] for at in sorted(captures)),
        stale_nodes=stale,
        ended=all(state.ended for state in states),
        waited_for=_waited_for(ranks),
        threshold_s=max(thresholds, default=None),
        late=_late(states),
    )


def _late(states: list[NodeStatus]) -> tuple[int, ...]:
    return tuple(sorted({rank for state in states for rank in _late_on(state)}))


def _late_on(state: NodeStatus) -> set[int]:
    """The few of a node that have not launched what the others of their group there have been in for some time.

    Within a node alone, whose ranks are asked at one moment: another node's status is of another time. And only where a
    later look found the others where they were: what moves looks ahead or behind by when it was asked.
    """
    found: set[int] = set()
    for each in _members(state.live).values():
        newest = max(counter.enqueued for _, counter in each)
        ahead = {rank: counter for rank, counter in each if counter.enqueued == newest}
        behind = {rank for rank, _ in each} - ahead.keys()
        asked_at = {row.rank: row.last_poll_at for row in state.live}
        held = [_held_s(state.at, asked_at[rank], counter) for rank, counter in ahead.items()]
        if behind and len(behind) < len(ahead) and min(held) >= HELD_S:
            found |= behind
    return found


def _held_s(written_at: float | None, asked_at: float | None, counter: GroupCounter) -> float:
    """How long a counter had not moved when it was last asked for; 0 where that is not known."""
    if written_at is None or asked_at is None:
        return 0.0
    return counter.still_s - max(0.0, written_at - asked_at)


def _is_stale(folder: Path, now: float) -> bool:
    try:
        return now - (folder / run_directory.STATUS).lstat().st_mtime > run_directory.FRESH_S
    except OSError:
        return True


_Members = dict[_Key, list[tuple[int, GroupCounter]]]


def _members(rows: Iterable[RankRow]) -> _Members:
    found: _Members = {}
    for row in rows:
        for counter in row.groups:
            found.setdefault((counter.recorder, counter.group, counter.name), []).append((row.rank, counter))
    return found


def _rank(state: NodeStatus, row: RankRow, absent: _Absent, now: float) -> RankLine:
    return RankLine(
        rank=row.rank,
        node=state.node,
        pid=row.pid,
        state=row.state,
        waits=row.waits,
        waits_s=row.waits_s,
        group=row.group,
        exit_status=row.exit_status,
        silent_s=now - row.last_poll_at if row.last_poll_at is not None else None,
        rate=row.rate,
        for_ranks=absent.of(row),
        code=row.code,
        role=row.role,
    )


class _Absent:
    """The members of the group a rank waits in that have not launched that operation. Counters are of collectives
    alone. Of a thousand ranks most wait for the same: that is found once."""

    def __init__(self, members: _Members) -> None:
        self._members: dict[tuple[str, str], list[tuple[int, GroupCounter]]] = {}
        for (_, group, name), each in members.items():
            self._members.setdefault((group, name), []).extend(each)
        self._found: dict[tuple[str, str, int], tuple[int, ...]] = {}

    def of(self, row: RankRow) -> tuple[int, ...]:
        if row.seq is None or not row.waits:
            return ()
        key = (row.group, row.group_name, row.seq)
        if key not in self._found:
            there = self._members.get(key[:2], ())
            self._found[key] = tuple(sorted({rank for rank, counter in there if counter.enqueued < row.seq}))
        found = self._found[key]
        at = bisect_left(found, row.rank)
        return found[:at] + found[at + 1 :] if found[at : at + 1] == (row.rank,) else found


def _groups(members: _Members) -> tuple[GroupLine, ...]:
    """Their counters are compared over the ranks that have any."""
    lines = []
    for (recorder, group, name), each in members.items():
        newest = max(counter.enqueued for _, counter in each)
        lines.append(
            GroupLine(
                group=group,
                recorder=recorder,
                newest=newest,
                completed=min(counter.completed for _, counter in each),
                members=len(each),
                behind=tuple(sorted(rank for rank, counter in each if counter.enqueued < newest)),
                still_s=min(counter.still_s for _, counter in each),
                name=name,
            )
        )
    return tuple(sorted(lines, key=lambda line: (line.recorder, line.group, line.name)))


def _waited_for(ranks: tuple[RankLine, ...]) -> tuple[WaitedFor, ...]:
    """Through chains of waits to the ranks at their ends, those first for which most wait."""
    by_rank = {line.rank: line for line in ranks}
    waiting_for: dict[int, list[RankLine]] = {}
    ends: dict[tuple[int, ...], set[int]] = {}  # of a thousand ranks most wait for the same
    steps = MOST_STEPS  # where everybody waits for others, no real job, the first chains must do
    for line in ranks:
        if line.for_ranks not in ends:
            if steps <= 0:
                continue
            ends[line.for_ranks], walked = _ends(line, by_rank)
            steps -= walked
        for root in ends[line.for_ranks]:
            waiting_for.setdefault(root, []).append(line)
    found = []
    for rank, waiting in waiting_for.items():
        longest = max(waiting, key=lambda line: line.waits_s or 0.0)
        line = by_rank[rank]
        waited_s = longest.waits_s or 0.0
        found.append(
            WaitedFor(rank, line.node, line.state, len(waiting), waited_s, longest.waits, line.code, line.role)
        )
    return tuple(sorted(found, key=lambda each: (-each.waiting, each.rank)))


def _ends(line: RankLine, by_rank: dict[int, RankLine]) -> tuple[set[int], int]:
    """The ranks at the ends of the chains from `line` that wait for nobody; none where the chains form a cycle. And
    the steps that it took."""
    seen = {line.rank}
    ends: set[int] = set()
    new = set(line.for_ranks)
    steps = len(new)
    while new:
        seen |= new
        ends |= {rank for rank in new if rank in by_rank and not by_rank[rank].for_ranks}
        onward = {by_rank[rank].for_ranks for rank in new if rank in by_rank}  # most are the same
        steps += sum(map(len, onward))
        new = {other for ranks in onward for other in ranks} - seen
    return ends, steps
