"""Dumps whose collectives ended minutes apart from the other ranks': run in another attempt, or seen by another clock.

A collective that needs everybody ends on all members at once. Ranks of one node share a clock: if others of the node
agree with the rest, or the ends are not in the same rhythm, the dump is of another attempt; if all ranks of the node
are off alike, its clock is.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from hangscope.diagnosis.align.agreement import is_symmetric
from hangscope.diagnosis.align.column_tools import Bools, Floats, Ints, grouped, runs
from hangscope.diagnosis.align.op_index import Index
from hangscope.model import UNKNOWN, Job, Kind
from hangscope.text import duration

# Clocks of one cluster differ by less; so do the ends of one collective.
_APART_S = 30.0
# Ranks of one node are off by the same time if only its clock is.
_ONE_CLOCK_S = 5.0
# How much the ends of collectives differ within one attempt, whatever the clocks say; the watchdog sweeps in 0.1 s.
_JITTER_S = 1.0


@dataclass(frozen=True, slots=True)
class _Offset:
    """How far the ends that a rank recorded are from those of most others, and how much that varies."""

    by_s: float
    jitter_s: float


@dataclass(frozen=True, slots=True)
class EndsApart:
    """The ranks that are off, and what that is put down to: another attempt (with why), a node's clock, or nobody can
    say."""

    ranks: frozenset[int]
    of_another_attempt: dict[int, str] = field(default_factory=dict)
    clocks_off_s: dict[str, float] = field(default_factory=dict)
    disputed: set[int] = field(default_factory=set)


def ends_apart(job: Job, index: Index) -> EndsApart:
    """Judge every rank whose collectives ended far from the others'."""
    offsets = _offsets(job, index)
    found = EndsApart(frozenset(offsets))
    on_node = grouped((job.nodes[rank], rank) for rank in job.dumps if rank in job.nodes) if offsets else {}
    for rank in sorted(offsets):
        node = job.nodes.get(rank, "")
        neighbours = [other for other in on_node.get(node, ()) if other != rank]
        why = _of_another_attempt(offsets, rank, neighbours)
        if why:
            found.of_another_attempt[rank] = why
        elif any(abs(offsets[other].by_s - offsets[rank].by_s) < _ONE_CLOCK_S for other in neighbours):
            found.clocks_off_s[node] = offsets[rank].by_s
        else:
            found.disputed.add(rank)
    return found


def _of_another_attempt(offsets: dict[int, _Offset], rank: int, neighbours: list[int]) -> str:
    """Why a dump whose ends are minutes off is of another attempt; empty where it may be a matter of clocks."""
    off = offsets[rank]
    when = "before" if off.by_s < 0 else "after"
    away = f"the same collectives ended {duration(abs(off.by_s))} {when} the other ranks'"
    if any(other not in offsets for other in neighbours):
        return f"{away}, and other ranks of its node agree with the rest"
    return f"{away}, and not in the same rhythm" if off.jitter_s > _JITTER_S else ""


def needs_all(index: Index) -> Bools:
    """Rows of calls that nobody leaves before all have come."""
    kind = index.ops.column("kind")
    found: Bools = ((kind == Kind.COLLECTIVE) | (kind == Kind.BATCH)) & index.named(is_symmetric)
    return found


def _offsets(job: Job, index: Index) -> dict[int, _Offset]:
    """The ranks whose collectives ended at other times than those of the largest set of ranks that agree."""
    ops = job.ops
    ended = np.where(ops.column("retired") == 1, ops.column("completed_ns"), UNKNOWN)
    rows = index.by_group[((ended > 0) & needs_all(index))[index.by_group]]
    if len(rows) < 2:
        return {}
    first = runs(ops.column("group")[rows], ops.column("seq")[rows])[:-1]
    widest_ns = int((np.maximum.reduceat(ended[rows], first) - np.minimum.reduceat(ended[rows], first)).max())
    if widest_ns < _APART_S / 3 * 1e9:
        return {}  # so near to each other, none is far from the middle
    rows = rows[np.lexsort((ended[rows], ops.column("seq")[rows], ops.column("group")[rows]))]
    group, seq, rank = (ops.column(name)[rows] for name in ("group", "seq", "rank"))
    ends = ended[rows] / 1e9
    starts = runs(group, seq)
    first = starts[:-1]
    count = np.diff(starts)
    middle = (ends[first + (count - 1) // 2] + ends[first + count // 2]) / 2
    off = ends - np.repeat(middle, count)
    shared = np.repeat(count > 1, count)
    if not shared.any() or float(np.abs(off[shared]).max()) < _APART_S / 2:
        return {}
    return _outside_the_largest(group[shared], rank[shared], off[shared])


def _outside_the_largest(group: Ints, rank: Ints, off: Floats) -> dict[int, _Offset]:
    """Of ranks with their offsets in each group: those who are not in the largest set that agrees, link by link."""
    by_group: dict[int, dict[int, float]] = defaultdict(dict)
    jitter: dict[int, float] = defaultdict(float)
    order = np.lexsort((rank, group))
    for part in np.split(order, runs(group[order], rank[order])[1:-1]):
        value = float(np.median(off[part]))
        who = int(rank[part[0]])
        by_group[int(group[part[0]])][who] = value
        jitter[who] = max(jitter[who], float(np.median(np.abs(off[part] - value))))
    reference = _largest_that_agrees(by_group)
    found: dict[int, _Offset] = {}
    for members in by_group.values():
        agreed = [value for member, value in members.items() if member in reference]
        for member in members.keys() - reference if agreed else ():
            found[member] = _Offset(members[member] - float(np.median(agreed)), jitter[member])
    return found


def _largest_that_agrees(by_group: dict[int, dict[int, float]]) -> set[int]:
    """Of ranks with their offsets by group: the largest set in which each is near another one, in some group."""
    agree: dict[int, set[int]] = {}
    for members in by_group.values():
        for member in members:
            agree.setdefault(member, {member})
        for a, b in pairwise(sorted(members, key=lambda member: members[member])):
            if members[b] - members[a] < _APART_S and agree[a] is not agree[b]:
                small, large = sorted((agree[a], agree[b]), key=len)
                large |= small
                agree.update(dict.fromkeys(small, large))
    latest = {id(agree[member]): value for members in by_group.values() for member, value in members.items()}
    return max(agree.values(), key=lambda ranks: (len(ranks), latest[id(ranks)]))
