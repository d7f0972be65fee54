"""Which dumps speak of this hang at all: heard and compared before anything is judged.

A folder holds what it holds: the dump of an attempt before, of another job, one taken minutes earlier, one from a node
whose clock is hours off. What tells them apart is what the ranks agree on. A collective that needs everybody ends on
all members at once, so the same collective that ended minutes apart on two ranks was either run twice, in two attempts,
or seen by two clocks; ranks of one node share a clock. And nobody completes a collective that the others never
launched. A dump that most others contradict is set aside with a gap. One that cannot be judged is *disputed*: what it
has, happened; what it does not have, it is silent about.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hangscope.columns import Bools, Floats, Ints, grouped, runs
from hangscope.diagnosis.align import symmetric_names
from hangscope.diagnosis.corrections import corrected
from hangscope.model import UNKNOWN, Dump, Gap, Job, Kind, Operations, Source, State
from hangscope.words import duration

# Clocks of one cluster differ by less; so do the ends of one collective.
_APART_S = 30.0
# Where no collective is shared: that long between one dump's end and the others' beginning is another attempt.
_PAUSE_S = 60.0
# Ranks of one node are off by the same time if only its clock is.
_ONE_CLOCK_S = 5.0
# How much the ends of collectives differ within one attempt, whatever the clocks say; the watchdog sweeps in 0.1 s.
_JITTER_S = 1.0
# More calls ahead than a rank could have added by mistake (see divergence.py).
_FURTHER = 8


@dataclass(frozen=True, slots=True)
class Heard:
    """The evidence as it is judged.

    `job` is without the dumps that were set aside, and with what recordings are known to get wrong set right.
    `disputed`: ranks whose dump may be of another time, silent about all that it does not have. `copied`: ranks whose
    dump is the same as another rank's. `clocks_off_s`: nodes whose clock differs so much that people should know.
    """

    job: Job
    gaps: tuple[Gap, ...]
    disputed: frozenset[int]
    copied: frozenset[int]
    clocks_off_s: Mapping[str, float]


def hear(job: Job) -> Heard:
    """Compare the dumps of a job with each other; no file is trusted for being first, or alone."""
    aside = _older_than_their_logs(job)
    disputed: set[int] = set()
    clocks: dict[str, float] = {}
    copies: dict[int, int] = {}
    if len(job.dumps) > 1 and len(job.ops):
        apart = _apart(job)
        for rank in sorted(apart):
            mates = [r for r in job.dumps if r != rank and rank in job.nodes and job.nodes.get(r) == job.nodes[rank]]
            why = _of_another_attempt(rank, mates, apart)
            if why:
                aside[rank] = why
            elif any(abs(apart[r][0] - apart[rank][0]) < _ONE_CLOCK_S for r in mates):
                clocks[job.nodes[rank]] = apart[rank][0]
            else:
                disputed.add(rank)
        unstamped = {r for r in job.dumps if _span(job, r) is None and len(job.ops.rows(rank=r))}
        disputed |= unstamped if len(unstamped) * 2 < len(job.dumps) else set()
        aside.update(_in_another_time(job, set(aside) | set(apart)))
        aside.update(_further_than_possible(job, set(aside)))
        copies = _copies(job)
    files = {rank: Source(dumps[0].file) for rank, dumps in job.dumps.items() if dumps}
    gaps = [
        Gap(f"stale: the dump of rank {r} is not of this attempt", why, r, job.nodes.get(r), files.get(r))
        for r, why in sorted(aside.items())
    ]
    gaps += [
        Gap(f"whose recording rank {r}'s dump is", f"it is the same as rank {other}'s", r, source=files.get(r))
        for r, other in sorted(copies.items())
    ]
    job = _without(job, set(aside)) if aside else job
    return Heard(corrected(job), tuple(gaps), frozenset(disputed - set(aside)), frozenset(copies), clocks)


# ---- the same collective, ended minutes apart ------------------------------------------------------------------------

# rank → how far the ends that it recorded are from those of most others, and how much that varies, in s.
_Offsets = dict[int, tuple[float, float]]


def _apart(job: Job) -> _Offsets:
    """The ranks whose collectives ended at other times than those of the largest set of ranks that agree."""
    ops = job.ops
    ended = np.where(ops.column("retired") == 1, ops.column("completed_ns"), UNKNOWN)
    rows = np.flatnonzero((ended > 0) & (ops.column("seq") >= 0) & _meets_all(ops))
    if len(rows) < 2:
        return {}
    rows = rows[np.lexsort((ended[rows], ops.column("seq")[rows], ops.column("group")[rows]))]
    group, seq, rank = (ops.column(c)[rows] for c in ("group", "seq", "rank"))
    ends, starts = ended[rows] / 1e9, runs(group, seq)
    first, count = starts[:-1], np.diff(starts)
    middle = (ends[first + (count - 1) // 2] + ends[first + count // 2]) / 2
    off, shared = ends - np.repeat(middle, count), np.repeat(count > 1, count)
    if not shared.any() or float(np.abs(off[shared]).max()) < _APART_S / 2:
        return {}
    return _outside_the_largest(group[shared], rank[shared], off[shared])


def _meets_all(ops: Operations) -> Bools:
    """Rows of calls that nobody leaves before all have come."""
    single = np.isin(ops.column("kind"), (Kind.COLLECTIVE, Kind.BATCH))
    found: Bools = single & np.isin(ops.column("name"), symmetric_names(ops))
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


def _in_another_time(job: Job, judged: set[int]) -> dict[int, str]:
    """Dumps that end long before those of most ranks begin (or the reverse), and do not lead up to them."""
    spans = {r: span for r in job.dumps if r not in judged and (span := _span(job, r)) is not None}
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
    found: dict[int, str] = {}
    for rank in (r for ranks in clusters for r in ranks if ranks is not main):
        before = spans[rank] < spans[main[0]]
        if not before or not _leads_up_to(job, rank, main):
            pause = first - spans[rank][1] if before else spans[rank][0] - last
            when = "before the other dumps begin" if before else "after the other dumps end"
            found[rank] = f"its recording is {duration(max(pause, 0) / 1e9)} {when}"
    return found


def _span(job: Job, rank: int) -> tuple[int, int] | None:
    rows, ops = job.ops.rows(rank=rank), job.ops
    created = ops.column("created_ns")[rows]
    if not (created > 0).any():
        return None
    times = [ops.column(c)[rows].max() for c in ("created_ns", "started_ns", "completed_ns")]
    return int(created[created > 0].min()), int(max(times))


def _leads_up_to(job: Job, rank: int, others: list[int]) -> bool:
    """Whether the others go on where this recording stops, and completed nothing beyond it that needs the rank.

    A rank that hung long ago looks so, where the others' rings have wrapped since.
    """
    ops, shared = job.ops, False
    group, seq, state = (ops.column(c) for c in ("group", "seq", "state"))
    theirs = np.isin(ops.column("rank"), others) & (seq >= 0)
    rows = ops.rows(rank=rank)
    rows = rows[seq[rows] >= 0]
    for g in np.unique(group[rows]).tolist():
        last, here = int(seq[rows[group[rows] == g]].max()), theirs & (group == g)
        if here.any():
            shared = True
            if int(seq[here].min()) < last or int(seq[here & (state == State.COMPLETED)].max(initial=0)) > last:
                return False
    return shared or any(job.wrapped(r) for r in others)


# ---- the rank's own log, and its own name ----------------------------------------------------------------------------

# Operations whose number in the watchdog's lines is not that of a collective.
_NO_PLACE = ("send", "recv", "coalesced")


def _older_than_their_logs(job: Job) -> dict[int, str]:
    """Dumps that end before what the rank's own watchdog says it launched. A job that hangs launches nothing more, so
    they were not written in this hang. What hangscope captured itself may well be older than the watchdog's line."""
    found: dict[int, str] = {}
    ops = job.ops
    for report in job.facts.watchdog if job.reason is None else ():
        dumps = job.dumps.get(report.rank, ())
        if report.kind != "timeout" or report.seq is None or report.operation in (None, *_NO_PLACE) or not dumps:
            continue
        if report.group_name is None or not all(_speaks_of_groups(d) for d in dumps):
            continue
        rows = ops.rows(rank=report.rank)
        named = [g.index for g in job.groups if g.is_called(report.group_name)]
        last = int(ops.column("seq")[rows[np.isin(ops.column("group")[rows], named)]].max(initial=UNKNOWN))
        if 0 <= last < report.seq - 1:
            found[report.rank] = f"its log says that #{report.seq} timed out, and its dump ends with #{last} there"
    if len(found) * 2 > len(job.dumps):
        # Those that were written together with them are as old.
        spans = {r: span for r in job.dumps if (span := _span(job, r)) is not None}
        old = [spans[r] for r in found if r in spans]
        for rank in set(spans) - set(found):
            if any(first <= spans[rank][1] and spans[rank][0] <= last for first, last in old):
                found[rank] = "it was written together with dumps that are older than their ranks' logs"
    return found


def _speaks_of_groups(dump: Dump) -> bool:
    """Whether it is whole and names its groups as the log does. torch 2.2, whose dumps have no version, does not."""
    return dump.complete and dump.role == "dump" and dump.backend == "nccl" and dump.records > 0 and bool(dump.version)


def _copies(job: Job) -> dict[int, int]:
    """Ranks whose recording is that of another rank, call for call and moment for moment: whose it is, nobody knows."""
    times = ("created_ns", "started_ns", "completed_ns", "duration_ms")
    made = {rank: [job.ops.columns[name][job.ops.span(rank)] for name in times] for rank in job.dumps}
    stamped = {rank: columns for rank, columns in made.items() if len(columns[0]) > 2 and columns[0].min() > 0}
    alike = grouped((b"".join(c.tobytes() for c in columns), rank) for rank, columns in stamped.items())
    return {r: next(o for o in ranks if o != r) for ranks in alike.values() if len(ranks) > 1 for r in ranks}


# ---- numbers that cannot be ------------------------------------------------------------------------------------------


def _further_than_possible(job: Job, without: set[int]) -> dict[int, str]:
    """A rank that alone completed collectives which need everybody and which nobody else ever launched."""
    ops = job.ops
    rows = np.flatnonzero(~np.isin(ops.column("rank"), sorted(without)) & _meets_all(ops) & (ops.column("seq") >= 0))
    found: dict[int, str] = {}
    for g in np.unique(ops.column("group")[rows]).tolist():
        mine = rows[ops.column("group")[rows] == g]
        ranks, seq, state = (ops.column(c)[mine] for c in ("rank", "seq", "state"))
        launched = {r: int(seq[ranks == r].max()) for r in np.unique(ranks).tolist()}
        whole = {r for r in launched if all(d.complete for d in job.dumps.get(r, ()))}
        if len(job.groups[g].members or ()) < 3 or len(whole) < 3:
            continue
        top = max(launched, key=lambda r: launched[r])
        rest = max(n for r, n in launched.items() if r != top)
        completed = int(seq[(state == State.COMPLETED) & (ranks == top)].max(initial=0))
        if completed > rest + _FURTHER and len(whole - {top}) >= 2:
            found[top] = f"it completed #{completed}, which needs all members, and nobody else got beyond #{rest}"
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
