"""slow: nothing hangs, but one rank makes all others wait again and again."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.launches import LateLaunches
from hangscope.diagnosis.own_time import OwnTime, waits_for
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.words import ranks_text

_SHARE = 0.05
"""A rank is slow when it costs its peers this share of the recorded time, and its own work takes…"""
_SHARE_IN_ROW = 0.35
"""(this one where a small lateness may have been seen many times over)…"""
_LONGER = 0.2
"""…this much longer than theirs, …"""
_STEADY = 0.6
"""…hardly ever less than theirs, …"""
_BEYOND = 2.0
"""…and this many times as large as their own differences."""
_PASSED_ON = 0.5
"""A rank that waited for another slow one for this part of what it costs only passes it on."""
_MOST_CANDIDATES = 16
_LEAST_TIMES = 3
_LEAST_TIMES_OF_TWO = 8
"""Of two ranks nobody can say how much they differ by chance: then it has to happen more often."""
_SURE_TIMES = 6
_SHARE_BY_LAUNCH = 0.25
_LEAST_LAUNCHES = 4
_LEAST_STAGES = 3
_LEAST_TIMED = 12
_HARDLY = 0.15
_NEARLY_ALWAYS = 0.85
"""A pipeline's slow stage waits hardly ever, and every other one nearly always."""


def slow(case: Case) -> Draft | None:
    """Ranks that take longer than their peers for the same work, again and again."""
    return _by_own_time(case) or _by_launches(case) or _by_transfers(case)


def _by_own_time(case: Case) -> Draft | None:
    """Ranks that spend less time inside operations than others who made the same calls in the same time."""
    found = [item for item in case.tardiness.own if _is_slow(item) and _often(case, item)]
    most = max((item.cost_ms for item in found), default=0.0)
    chosen = [item for item in found if 2 * item.cost_ms >= most and not _passes_on(case, item, found)]
    if not chosen or len(chosen) * 2 > len(case.job.ranks):
        return None
    top = chosen[0]
    sure = top.peers > 1 and all(item.late >= _SURE_TIMES and item.bound != "up to" for item in chosen)
    return _draft(
        case,
        {i.rank: f"takes {i.late_ms:.0f} ms longer than its peers for the same calls, {i.late} times" for i in chosen},
        f"{top.bound} {sum(i.cost_ms / i.span_ms for i in chosen):.0%}".lstrip(),
        "high" if sure else "medium",
        "slow: between the same two collectives a rank takes longer than its peers for its own work, again and again",
        [_finding(case, i) for i in chosen[:5]],
    )


def _finding(case: Case, item: OwnTime) -> Finding:
    met = case.job.ops[item.felt_row]
    return Finding(
        f"for the same calls rank {item.rank} took {item.late_ms:.0f} ms longer than its peers, {item.late} times in "
        f"{item.span_ms / 1e3:.1f} s; others waited for that in {met.name}{case.at(met.frames)}",
        case.source(met.rank, met),
    )


def _is_slow(item: OwnTime) -> bool:
    return (
        item.cost_ms >= (_SHARE_IN_ROW if item.in_row else _SHARE) * item.span_ms
        and item.extra_ms >= _LONGER * item.own_ms
        and item.steady >= _STEADY
        and item.extra_ms >= _BEYOND * item.spread_ms
    )


def _passes_on(case: Case, item: OwnTime, found: list[OwnTime]) -> bool:
    """Collectives that overlap with computation make waiting look longer than it is, and by that others quicker."""
    return any(
        waits_for(case.alignment, item.rank, other.rank) >= _PASSED_ON * item.cost_ms
        for other in found[:_MOST_CANDIDATES]
        if other.rank != item.rank
    )


def _often(case: Case, item: OwnTime) -> bool:
    """Late again and again; or every time in a ring that holds no more, if it wrapped: first steps are never alike."""
    if item.peers == 1:
        return item.late >= _LEAST_TIMES_OF_TWO
    return item.late >= _LEAST_TIMES or (item.late == 2 and item.always and case.job.wrapped(item.rank))


def _by_launches(case: Case) -> Draft | None:
    """One rank whose collectives end as soon as it has launched them, while everybody else has long done so."""
    window_ms = case.tardiness.window_ms
    found = [item for item in case.tardiness.launches if _launches_late(item, window_ms)]
    if len(found) != 1:
        return None  # one that is late because of another cannot be told from that other
    top = found[0]
    text = f"launched {top.times} of {top.collectives} collectives last, {top.late_ms:.0f} ms after the others (median)"
    return _draft(
        case,
        {top.rank: text},
        f"up to {top.cost_ms / window_ms:.0%}",
        "medium",
        "slow: a rank launches last again and again, and never waits itself",
        [Finding(f"rank {top.rank} {text}, and never waited itself", case.source(top.rank))],
    )


def _launches_late(item: LateLaunches, window_ms: float) -> bool:
    return (
        item.times >= _LEAST_LAUNCHES
        and item.own_waits * 4 <= item.times
        and item.cost_ms >= _SHARE_BY_LAUNCH * window_ms
    )


def _by_transfers(case: Case) -> Draft | None:
    """The one stage of a pipeline that never waits, while all others do nothing else.

    A stage that is alone in its role has no peer to be compared with, and stages differ by design: only the extreme
    case says something.
    """
    shares = {rank: share for rank in case.job.ranks if (share := _waiting_share(case, rank)) is not None}
    if len(shares) < len(case.job.ranks) or len(shares) < _LEAST_STAGES:
        return None
    least, *others = sorted(shares, key=lambda rank: shares[rank])
    if shares[least] > _HARDLY or shares[others[0]] < _NEARLY_ALWAYS:
        return None
    if not case.alignment.point_to_point[case.job.ops.span(least)].any():
        return None
    text = f"waits {shares[least]:.0%} of the time, all others {shares[others[0]]:.0%} or more"
    return _draft(
        case,
        {least: text},
        f"{shares[others[0]]:.0%}",
        "medium",
        "slow: a stage of a pipeline hardly waits, while all others wait nearly always",
        [Finding(f"rank {least} {text}, in their transfers and collectives", case.source(least))],
    )


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


def _draft(case: Case, culprits: dict[int, str], share: str, confidence: str, rule: str, why: list[Finding]) -> Draft:
    names = ranks_text(culprits)
    alone = len(culprits) == 1
    return Draft(
        kind="slow",
        hang=False,
        headline=f"{names} {'keeps' if alone else 'keep'} the others waiting: {share} of the time",
        summary=f"Nothing hangs, but {case.whom(culprits)} {'is' if alone else 'are'} late again and again and "
        f"{'costs' if alone else 'cost'} the others {share} of the recorded time.",
        confidence=confidence,
        rule=rule,
        culprits=culprits,
        why=why,
        next_steps=[
            f"profile what {names} {'does' if alone else 'do'} between collectives (data loading, garbage collection, "
            "a throttled GPU or CPU)",
            *(
                f"node: compare {case.job.nodes[rank]} with the others: clocks, temperature, "
                "nvidia-smi -q -d PERFORMANCE"
                for rank in list(culprits)[:2]
                if rank in case.job.nodes
            ),
        ],
    )
