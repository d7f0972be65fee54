"""What a completed collective proves of the members that do not show it.

One that needs everybody proves that every member launched it, and finished all before it. A dump without it was taken
before; one that has something older as unfinished stopped being kept up to date. But one rank alone that is two
completed collectives ahead of several others proves nothing: it is disputed.
"""

from collections.abc import Collection, Mapping

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Bools, Ints
from hangscope.diagnosis.align.lanes import Lane
from hangscope.diagnosis.waits.rank_progress import RankProgress, Scope, Unit, split_inside
from hangscope.model import UNKNOWN, State

# How many collectives that one rank alone completed are looked at, newest first.
_LOOK_BACK = 256


def compare(
    alignment: Alignment, of: Mapping[int, RankProgress], differing: Collection[tuple[int, int]], lane: Lane
) -> int:
    """Set the members' progress in one group right. The last collective that every member is known to have launched,
    because several completed it; UNKNOWN where there is none."""
    ops = alignment.job.ops
    group = lane.group.index
    members = [of[rank] for rank in lane.group.members or () if rank in of]
    dumps = _by_source(members, "dump")
    ranks = ops.column("rank")[lane.rows]
    trusted = [mine.rank for mine in dumps if mine.scope is not Scope.DISPUTED]
    done = (ops.column("state")[lane.rows] == State.COMPLETED) & np.isin(ranks, trusted)
    proven, finished = _last_proven(lane, ranks, done & alignment.symmetric[lane.rows], dumps, differing)
    passed = int(ops.column("seq")[lane.rows[done][-1]]) if done.any() else UNKNOWN
    for mine in _by_source(members, "counters"):
        _forget(mine, group, proven + 1)
    for mine in dumps:
        behind = mine.launched.get(group, proven) < proven and mine.rank not in finished
        if behind and mine.scope is Scope.WHOLE:
            mine.scope = Scope.EARLIER
        if (mine.rank, group) not in differing:
            _forget(mine, group, _finished_before(mine, group, proven, passed))
    return proven


def _by_source(members: list[RankProgress], source: str) -> list[RankProgress]:
    return [mine for mine in members if mine.source == source]


def _last_proven(
    lane: Lane, ranks: Ints, completed: Bools, dumps: list[RankProgress], differing: Collection[tuple[int, int]]
) -> tuple[int, set[int]]:
    """The last collective that those who `completed` it prove launched by all, and who they are.

    Who alone is ahead of several others, and ran nothing else than they did, becomes disputed.
    """
    group = lane.group.index
    finished: set[int] = set()
    places = np.flatnonzero(np.logical_or.reduceat(completed, lane.starts[:-1]))[::-1]
    for place in places[:_LOOK_BACK].tolist():
        seq = int(lane.seqs[place])
        here = slice(lane.starts[place], lane.starts[place + 1])
        finished = set(ranks[here][completed[here]].tolist())
        whole = [mine for mine in dumps if mine.scope is Scope.WHOLE and mine.rank not in finished]
        behind = [mine for mine in whole if min(mine.launched.get(group, 0), mine.completed.get(group, 0) + 1) < seq]
        if len(finished) > 1 or len(behind) <= 1 or (min(finished), group) in differing:
            return seq, finished
        for mine in dumps:
            if mine.rank in finished:
                mine.scope = Scope.DISPUTED
    return UNKNOWN, finished


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


def _forget(mine: RankProgress, group: int, before: int) -> None:
    """Take out of a record what peers finished and the rank need not be inside of still: all before `before`.

    What its own watchdog reported stays.
    """
    units = (*mine.inside, *mine.queued)
    left = [u for u in units if not u.is_collective_of(group) or (u.seq or 0) >= before or u.timed_out]
    if len(left) == len(units):
        return
    mine.stale = mine.scope is Scope.WHOLE and mine.source == "dump"
    mine.completed[group] = max(mine.completed.get(group, UNKNOWN), before - 1)
    if mine.source != "counters":
        mine.inside, mine.queued = split_inside(left)
        return
    if mine.launched.get(group, UNKNOWN) >= before and all(u.group != group for u in left):
        left.append(Unit(mine.rank, group, before))
    mine.inside = tuple(left)
