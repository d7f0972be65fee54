"""Which dumps speak of this hang at all: heard and compared before anything is judged.

A folder holds what it holds: the dump of an attempt before, of another job, one taken minutes earlier, one from a node
whose clock is hours off. What tells them apart is what the ranks agree on. A collective that needs everybody ends on
all members at once, so the same collective that ended minutes apart on two ranks was either run twice, in two attempts,
or seen by two clocks; ranks of one node share a clock. And nobody completes a collective that the others never
launched. A dump that most others contradict is set aside with a gap. One that cannot be judged is *disputed*: what it
has, happened; what it does not have, it is silent about.
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import accumulate, pairwise

import numpy as np

from hangscope.diagnosis.align.agreement import PEER_CALLS, is_symmetric
from hangscope.diagnosis.align.column_tools import Bools, Floats, Ints, grouped, runs
from hangscope.diagnosis.align.op_index import Index
from hangscope.diagnosis.evidence.corrections import corrected
from hangscope.model import UNKNOWN, Dump, Gap, Job, Kind, Operations, Source, State
from hangscope.text import duration

# Clocks of one cluster differ by less; so do the ends of one collective.
_APART_S = 30.0
# Where no collective is shared: that long between one dump's end and the others' beginning is another attempt.
_PAUSE_S = 60.0
# Ranks of one node are off by the same time if only its clock is.
_ONE_CLOCK_S = 5.0
# How much the ends of collectives differ within one attempt, whatever the clocks say; the watchdog sweeps in 0.1 s.
_JITTER_S = 1.0
_FAR = 1 << 62
# More calls ahead than a rank could have added by mistake (see divergence.py).
_FURTHER = 8


@dataclass(frozen=True, slots=True)
class VettedDumps:
    """The evidence as it is judged.

    `job` is without the dumps that were set aside, and with what recordings are known to get wrong set right; `index`
    is over its operations.
    `disputed`: ranks whose dump may be of another time, silent about all that it does not have. `copied`: ranks whose
    dump is the same as another rank's. `clocks_off_s`: nodes whose clock differs so much that people should know.
    """

    job: Job
    index: Index
    gaps: tuple[Gap, ...]
    disputed: frozenset[int]
    copied: frozenset[int]
    clocks_off_s: Mapping[str, float]


def vet_dumps(job: Job) -> VettedDumps:
    """Compare the dumps of a job with each other; no file is trusted for being first, or alone."""
    index = Index(job.ops)
    aside = _older_than_their_logs(job, index)
    disputed: set[int] = set()
    clocks: dict[str, float] = {}
    copies: dict[int, int] = {}
    if len(job.dumps) > 1 and len(job.ops):
        apart = _apart(job, index)
        on_node = grouped((job.nodes[r], r) for r in job.dumps if r in job.nodes) if apart else {}
        for rank in sorted(apart):
            mates = [r for r in on_node.get(job.nodes.get(rank, ""), ()) if r != rank]
            why = _of_another_attempt(rank, mates, apart)
            if why:
                aside[rank] = why
            elif any(abs(apart[r][0] - apart[rank][0]) < _ONE_CLOCK_S for r in mates):
                clocks[job.nodes[rank]] = apart[rank][0]
            else:
                disputed.add(rank)
        unstamped = {r for r in job.dumps if len(job.ops.rows(rank=r))} - set(_spans(job, index))
        disputed |= unstamped if len(unstamped) * 2 < len(job.dumps) else set()
        aside.update(_in_another_time(job, index, set(aside) | set(apart)))
        aside.update(_further_than_possible(job, index, set(aside)))
        copies = _copies(job, index)
    files = {rank: Source(dumps[0].file) for rank, dumps in job.dumps.items() if dumps}
    gaps = [
        Gap(f"stale: the dump of rank {r} is not of this attempt", why, r, job.nodes.get(r), files.get(r))
        for r, why in sorted(aside.items())
    ]
    gaps += [
        Gap(f"whose recording rank {r}'s dump is", f"it is the same as rank {other}'s", r, source=files.get(r))
        for r, other in sorted(copies.items())
    ]
    if aside:
        job = _without(job, set(aside))
        index = Index(job.ops)
    job = corrected(job, index)
    index = index if index.ops is job.ops else Index(job.ops)
    return VettedDumps(job, index, tuple(gaps), frozenset(disputed - set(aside)), frozenset(copies), clocks)


# ---- the same collective, ended minutes apart ------------------------------------------------------------------------

# rank → how far the ends that it recorded are from those of most others, and how much that varies, in s.
_Offsets = dict[int, tuple[float, float]]


def _apart(job: Job, index: Index) -> _Offsets:
    """The ranks whose collectives ended at other times than those of the largest set of ranks that agree."""
    ops = job.ops
    ended = np.where(ops.column("retired") == 1, ops.column("completed_ns"), UNKNOWN)
    rows = index.by_group[((ended > 0) & _meets_all(index))[index.by_group]]
    if len(rows) < 2:
        return {}
    ends, first = ended[rows], runs(ops.column("group")[rows], ops.column("seq")[rows])[:-1]
    if int((np.maximum.reduceat(ends, first) - np.minimum.reduceat(ends, first)).max()) < _APART_S / 3 * 1e9:
        return {}  # so near to each other, none is far from the middle
    rows = rows[np.lexsort((ends, ops.column("seq")[rows], ops.column("group")[rows]))]
    group, seq, rank = (ops.column(c)[rows] for c in ("group", "seq", "rank"))
    ends, starts = ended[rows] / 1e9, runs(group, seq)
    first, count = starts[:-1], np.diff(starts)
    middle = (ends[first + (count - 1) // 2] + ends[first + count // 2]) / 2
    off, shared = ends - np.repeat(middle, count), np.repeat(count > 1, count)
    if not shared.any() or float(np.abs(off[shared]).max()) < _APART_S / 2:
        return {}
    return _outside_the_largest(group[shared], rank[shared], off[shared])


def _meets_all(index: Index) -> Bools:
    """Rows of calls that nobody leaves before all have come."""
    kind = index.ops.column("kind")
    found: Bools = ((kind == Kind.COLLECTIVE) | (kind == Kind.BATCH)) & index.named(is_symmetric)
    return found


def _outside_the_largest(group: Ints, rank: Ints, off: Floats) -> _Offsets:
    """Of ranks with their offsets in each group: those who are not in the largest set that agrees, link by link."""
    by_group: dict[int, dict[int, float]] = defaultdict(dict)
    spread: dict[int, float] = defaultdict(float)
    order = np.lexsort((rank, group))
    for part in np.split(order, runs(group[order], rank[order])[1:-1]):
        value, who = float(np.median(off[part])), int(rank[part[0]])
        by_group[int(group[part[0]])][who] = value
        spread[who] = max(spread[who], float(np.median(np.abs(off[part] - value))))
    agree: dict[int, set[int]] = {}
    for members in by_group.values():
        for member in members:
            agree.setdefault(member, {member})
        for a, b in pairwise(sorted(members, key=lambda r: members[r])):
            if members[b] - members[a] < _APART_S and agree[a] is not agree[b]:
                small, large = sorted((agree[a], agree[b]), key=len)
                large |= small
                agree.update(dict.fromkeys(small, large))
    latest = {id(agree[r]): value for members in by_group.values() for r, value in members.items()}
    reference = max(agree.values(), key=lambda ranks: (len(ranks), latest[id(ranks)]))
    found: _Offsets = {}
    for members in by_group.values():
        agreed = [value for r, value in members.items() if r in reference]
        for r in members.keys() - reference if agreed else ():
            found[r] = members[r] - float(np.median(agreed)), spread[r]
    return found


def _of_another_attempt(rank: int, mates: list[int], apart: _Offsets) -> str:
    """Why a dump whose ends are minutes off is of another attempt; empty where it may be a matter of clocks."""
    off_s, jitter_s = apart[rank]
    away = f"the same collectives ended {duration(abs(off_s))} {'before' if off_s < 0 else 'after'} the other ranks'"
    if any(r not in apart for r in mates):
        return f"{away}, and other ranks of its node agree with the rest"
    return f"{away}, and not in the same rhythm" if jitter_s > _JITTER_S else ""


# ---- nothing shared: only the times of the recordings ----------------------------------------------------------------


def _in_another_time(job: Job, index: Index, judged: set[int]) -> dict[int, str]:
    """Dumps that end long before those of most ranks begin (or the reverse), and do not lead up to them."""
    spans = {r: span for r, span in _spans(job, index).items() if r not in judged}
    clusters: list[list[int]] = []
    reach = 0
    for rank in sorted(spans, key=lambda r: spans[r]):
        first, last = spans[rank]
        if not clusters or first - reach > _PAUSE_S * 1e9:
            clusters.append([])
            reach = 0
        clusters[-1].append(rank)
        reach = max(reach, last)
    if len(clusters) < 2:
        return {}
    main = max(reversed(clusters), key=len)
    first, last = min(spans[r][0] for r in main), max(spans[r][1] for r in main)
    reached = _reached(index, main)
    found: dict[int, str] = {}
    for rank in (r for ranks in clusters for r in ranks if ranks is not main):
        before = spans[rank] < spans[main[0]]
        if not before or not _leads_up_to(job, rank, main, reached):
            pause = first - spans[rank][1] if before else spans[rank][0] - last
            when = "before the other dumps begin" if before else "after the other dumps end"
            found[rank] = f"its recording is {duration(max(pause, 0) / 1e9)} {when}"
    return found


def _spans(job: Job, index: Index) -> dict[int, tuple[int, int]]:
    """From when to when each dump was recorded, where it says so."""
    created, *others = (job.ops.column(c) for c in ("created_ns", "started_ns", "completed_ns"))
    first = index.by_rank(index.smallest(np.where(created > 0, created, _FAR)))
    last = index.by_rank(np.maximum.reduce([index.largest(column) for column in (created, *others)]))
    return {rank: (first[rank], last[rank]) for rank in job.dumps if first.get(rank, _FAR) < _FAR}


_Reached = dict[int, tuple[int, int]]


def _reached(index: Index, ranks: list[int]) -> _Reached:
    """Group → of some ranks the smallest number that they recorded there, and the largest that one completed."""
    ops = index.ops
    rows = np.flatnonzero(np.isin(ops.column("rank"), ranks) & (ops.column("seq") >= 0))
    group, seq, done = (ops.column(c)[rows] for c in ("group", "seq", "state"))
    low = np.full(int(group.max(initial=-1)) + 1, _FAR)
    np.minimum.at(low, group, seq)
    high = np.zeros(len(low), dtype=np.int64)
    np.maximum.at(high, group[done == State.COMPLETED], seq[done == State.COMPLETED])
    return {g: (int(low[g]), int(high[g])) for g in np.flatnonzero(low < _FAR).tolist()}


def _leads_up_to(job: Job, rank: int, others: list[int], reached: _Reached) -> bool:
    """Whether the others go on where this recording stops, and completed nothing beyond it that needs the rank.

    A rank that hung long ago looks so, where the others' rings have wrapped since.
    """
    part = job.ops.span(rank)
    group, seq = job.ops.column("group")[part], job.ops.column("seq")[part]
    mine = {g: int(seq[group == g].max()) for g in np.unique(group[seq >= 0]).tolist() if g in reached}
    if any(reached[g][0] < last or reached[g][1] > last for g, last in mine.items()):
        return False
    return bool(mine) or any(job.wrapped(r) for r in others)


# ---- the rank's own log, and its own name ----------------------------------------------------------------------------


def _older_than_their_logs(job: Job, index: Index) -> dict[int, str]:
    """Dumps that end before what the rank's own watchdog says it launched. A job that hangs launches nothing more, so
    they were not written in this hang. What hangscope captured itself may well be older than the watchdog's line."""
    found: dict[int, str] = {}
    ops, named = job.ops, grouped((g.name, g.index) for g in job.groups if g.is_called(g.name))
    for report in job.facts.watchdog if job.reason is None else ():
        dumps = job.dumps.get(report.rank, ())
        if report.kind != "timeout" or report.seq is None or report.operation in (None, *PEER_CALLS) or not dumps:
            continue
        if report.group_name is None or not all(_speaks_of_groups(d) for d in dumps):
            continue
        part, groups = ops.span(report.rank), named.get(report.group_name, [])
        last = int(ops.column("seq")[part][np.isin(ops.column("group")[part], groups)].max(initial=UNKNOWN))
        if 0 <= last < report.seq - 1:
            found[report.rank] = f"its log says that #{report.seq} timed out, and its dump ends with #{last} there"
    if len(found) * 2 > len(job.dumps):
        # Those that were written together with them are as old.
        spans = _spans(job, index)
        old = sorted(spans[r] for r in found if r in spans)
        until = list(accumulate((last for _, last in old), max))
        for rank in set(spans) - set(found):
            begun = bisect(old, (spans[rank][1], _FAR))
            if begun and spans[rank][0] <= until[begun - 1]:
                found[rank] = "it was written together with dumps that are older than their ranks' logs"
    return found


def _speaks_of_groups(dump: Dump) -> bool:
    """Whether it is whole and names its groups as the log does. torch 2.2, whose dumps have no version, does not."""
    return dump.complete and dump.role == "dump" and dump.backend == "nccl" and dump.records > 0 and bool(dump.version)


def _copies(job: Job, index: Index) -> dict[int, int]:
    """Ranks whose recording is that of another rank, call for call and moment for moment: whose it is, nobody knows."""
    created, starts, lengths = job.ops.column("created_ns"), index.starts, np.diff(index.starts)
    stamped = np.flatnonzero((lengths > 2) & (index.smallest(created) > 0)).tolist()
    # Few recordings are as long, and begin and end at the same moments: only those are compared.
    ends = ((int(lengths[i]), int(created[starts[i]]), int(created[starts[i + 1] - 1]), i) for i in stamped)
    near = [ranks for ranks in grouped((tuple(key), index.ranks[i]) for *key, i in ends).values() if len(ranks) > 1]
    times = ("created_ns", "started_ns", "completed_ns", "duration_ms")
    made = {r: [job.ops.columns[name][job.ops.span(r)] for name in times] for ranks in near for r in ranks}
    alike = grouped((b"".join(c.tobytes() for c in columns), rank) for rank, columns in made.items())
    return {r: next(o for o in ranks if o != r) for ranks in alike.values() if len(ranks) > 1 for r in ranks}


# ---- numbers that cannot be ------------------------------------------------------------------------------------------


def _further_than_possible(job: Job, index: Index, without: set[int]) -> dict[int, str]:
    """A rank that alone completed collectives which need everybody and which nobody else ever launched."""
    seq, done, pairs = job.ops.column("seq"), job.ops.column("state") == State.COMPLETED, index.pairs
    counts = _meets_all(index)
    launched, completed = pairs.largest(seq, counts), pairs.largest(seq, counts & done)
    whole = {r for r, dumps in job.dumps.items() if all(d.complete for d in dumps)}
    found: dict[int, str] = {}
    for g, members in sorted(pairs.of_group.items()):
        mine = [(launched[n], -r, n) for r, n in members if r not in without and launched[n] >= 0]
        here = sum(-r in whole for _, r, _ in mine)
        if len(job.groups[g].members or ()) < 3 or here < 3:
            continue
        (_, top, n), (rest, _, _) = nlargest(2, mine)
        if completed[n] > rest + _FURTHER and here - (-top in whole) >= 2:
            found[-top] = f"it completed #{completed[n]}, which needs all members, and nobody else got beyond #{rest}"
    return found


# ---- leaving out -----------------------------------------------------------------------------------------------------


def _without(job: Job, aside: set[int]) -> Job:
    """The job as if these dumps had not been found; ranks that nothing else mentions are not part of it."""
    ops = job.ops
    keep = ~np.isin(ops.column("rank"), sorted(aside))
    columns = {name: column[keep] for name, column in ops.columns.items()}
    dumps = {rank: found for rank, found in job.dumps.items() if rank not in aside}
    status = {key: value for key, value in job.status.items() if key[0] not in aside}
    seen = {*np.unique(columns["group"]).tolist(), *(group for _, group in status)}
    members = {r for g in job.groups if g.index in seen for r in g.members or ()}
    known = {*dumps, *members, *job.processes, *(r for r, _ in job.facts.log_ranks), *job.facts.signs_of_life}
    known |= {r.rank for r in job.facts.watchdog}
    return replace(
        job,
        ops=Operations(columns, ops.tables, job.groups),
        dumps=dumps,
        status=status,
        ranks=tuple(r for r in job.ranks if r in known or not known or r < max(known)),
        first_kept={key: value for key, value in job.first_kept.items() if key[0] not in aside},
    )
