"""slow: nothing hangs, but one rank makes all others wait again and again."""

from collections.abc import Collection, Iterator

import numpy as np

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt, doubts_where
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.code_lines import at
from hangscope.diagnosis.findings import entry
from hangscope.diagnosis.slowness.own_time import Bound, OwnTime, waits_for
from hangscope.diagnosis.verdict import Finding

# A rank is slow when it costs its peers this share of the recorded time, and its own work takes…
_SHARE = 0.05
# (this one where a small lateness may have been seen many times over)…
_SHARE_IN_ROW = 0.35
# …this much longer than theirs, …
_LONGER = 0.2
# …hardly ever less than theirs, …
_STEADY = 0.6
# …and this many times as large as their own differences.
_BEYOND = 2.0
# A rank that waited for another slow one for this part of what it costs only passes it on.
_PASSED_ON = 0.5
_MOST_CANDIDATES = 16
_LEAST_TIMES = 3
# Of two ranks nobody can say how much they differ by chance: then it has to happen more often.
_LEAST_TIMES_OF_TWO = 8
_MANY_TIMES = 6
_SHARE_BY_LAUNCH = 0.25
_LEAST_LAUNCHES = 4
_LEAST_STAGES = 3
_LEAST_TIMED = 12
_HARDLY = 0.15
# A pipeline's slow stage waits hardly ever, and every other one nearly always.
_NEARLY_ALWAYS = 0.85


def slow(case: Case) -> Iterator[Accusation]:
    """Ranks that take longer than their peers for the same work, again and again."""
    if found := _by_own_time(case) or _by_launches(case) or _by_transfers(case):
        yield found


def _by_own_time(case: Case) -> Accusation | None:
    """Ranks that spend less time inside operations than others who made the same calls in the same time."""
    found = [item for item in case.stragglers.own if _is_slow(item) and _often(case, item)]
    most = max((item.cost_ms for item in found), default=0.0)
    chosen = [item for item in found if 2 * item.cost_ms >= most and not _passes_on(case, item, found)]
    if not chosen or len(chosen) * 2 > len(case.job.ranks):
        return None
    top = chosen[0]
    doubts = {
        Doubt.ONE_PEER: top.peers <= 1,
        Doubt.FEW_CONFIRM: any(item.late < _MANY_TIMES for item in chosen),
        Doubt.BOUND_ONLY: any(item.bound is Bound.AT_MOST for item in chosen),
    }
    text = "takes {:.0f} ms longer than its peers for the same calls, {} times"
    texts = {item.rank: text.format(item.late_ms, item.late) for item in chosen}
    share = f"{top.bound.value} {sum(i.cost_ms / i.span_ms for i in chosen):.0%}".lstrip()
    return _accusation(Basis.SLOW_WORK, texts, share, [_finding(case, i) for i in chosen[:5]], doubts_where(doubts))


def _finding(case: Case, item: OwnTime) -> Finding:
    met = case.job.ops[item.waited_row]
    text = f"for the same calls rank {item.rank} took {item.late_ms:.0f} ms longer than its peers, {item.late} times"
    where = f"{met.name}{at(met.frames)}"
    return entry(case, f"{text} in {item.span_ms / 1e3:.1f} s; others waited for that in {where}", met)


def _is_slow(item: OwnTime) -> bool:
    costly = item.cost_ms >= (_SHARE_IN_ROW if item.in_row else _SHARE) * item.span_ms
    longer = item.extra_ms >= _LONGER * item.own_ms and item.extra_ms >= _BEYOND * item.spread_ms
    return costly and longer and item.steady >= _STEADY


def _passes_on(case: Case, item: OwnTime, found: list[OwnTime]) -> bool:
    """Collectives that overlap with computation make waiting look longer than it is, and by that others quicker."""
    others = [other.rank for other in found[:_MOST_CANDIDATES] if other.rank != item.rank]
    return any(waits_for(case.alignment, item.rank, other) >= _PASSED_ON * item.cost_ms for other in others)


def _often(case: Case, item: OwnTime) -> bool:
    """Late again and again; or every time in a ring that holds no more, if it wrapped: first steps are never alike."""
    full_ring = item.peers > 1 and item.late == 2 and item.always and case.job.wrapped(item.rank)
    return full_ring or item.late >= (_LEAST_TIMES if item.peers > 1 else _LEAST_TIMES_OF_TWO)


def _by_launches(case: Case) -> Accusation | None:
    """One rank whose collectives end as soon as it has launched them, while everybody else has long done so."""
    window_ms = case.stragglers.window_ms
    often = [i for i in case.stragglers.launches if i.times >= _LEAST_LAUNCHES and i.own_waits * 4 <= i.times]
    found = [item for item in often if item.cost_ms >= _SHARE_BY_LAUNCH * window_ms]
    if len(found) != 1:
        return None  # one that is late because of another cannot be distinguished from it
    top = found[0]
    text = f"launched {top.times} of {top.collectives} collectives last, {top.late_ms:.0f} ms after the others (median)"
    finding = Finding(f"rank {top.rank} {text}, and never waited itself", case.source(top.rank))
    return _accusation(Basis.SLOW_LAUNCHES, {top.rank: text}, f"up to {top.cost_ms / window_ms:.0%}", [finding])


def _by_transfers(case: Case) -> Accusation | None:
    """The one stage of a pipeline that never waits, while all others do nothing else.

    A stage that is alone in its role has no peer to be compared with, and stages differ by design: only the extreme
    case says something.
    """
    shares = {rank: share for rank in case.job.ranks if (share := _waiting_share(case, rank)) is not None}
    if len(shares) < len(case.job.ranks) or len(shares) < _LEAST_STAGES:
        return None
    least, *others = sorted(shares, key=lambda rank: shares[rank])
    transfers = case.alignment.point_to_point[case.job.ops.span(least)].any()
    if shares[least] > _HARDLY or shares[others[0]] < _NEARLY_ALWAYS or not transfers:
        return None
    text = f"waits {shares[least]:.0%} of the time, all others {shares[others[0]]:.0%} or more"
    finding = Finding(f"rank {least} {text}, in their transfers and collectives", case.source(least))
    return _accusation(Basis.SLOW_STAGE, {least: text}, f"{shares[others[0]]:.0%}", [finding])


def _waiting_share(case: Case, rank: int) -> float | None:
    """Which part of the recorded time a rank spent inside operations; None where too few were timed."""
    ops = case.job.ops
    part = ops.span(rank)
    duration = ops.columns["duration_ms"][part].astype(np.float64)
    created = ops.column("created_ns")[part]
    timed = np.isfinite(duration)
    if int(timed.sum()) < _LEAST_TIMED or int(created.min(initial=0)) < 0:
        return None
    window_ms = float(created.max() - created.min()) / 1e6
    return float(duration[timed].sum()) / window_ms if window_ms > 0 else None


def _accusation(
    basis: Basis, slow: dict[int, str], share: str, findings: list[Finding], doubts: Collection[Doubt] = ()
) -> Accusation:
    accused = [Accused(rank, "slow", text=text) for rank, text in slow.items()]
    return Accusation(basis, "slow", accused, findings=findings, doubts=doubts, hang=False, detail=share)
