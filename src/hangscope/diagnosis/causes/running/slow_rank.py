"""slow: nothing hangs, but one rank makes all others wait again and again.

Seen by its own time between collectives, where the recorder timed them; else by its launches; else, in a pipeline whose
stages have no peers to be compared with, by who never waits.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.accusation import HIGH, MEDIUM, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause, Words
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.evidence.code_lines import at, function_line, line
from hangscope.diagnosis.evidence.training_thread import in_backward, in_collective
from hangscope.diagnosis.findings import entry
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.slowness.late_launches import LateLaunches
from hangscope.diagnosis.slowness.own_time import Bound, OwnTime, waits_for
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import Frame
from hangscope.text import verb

SLOW_WORK = Grounds(
    "slow_work",
    Layer.NO_HANG,
    HIGH,
    "between the same two collectives a rank repeatedly takes longer than its peers",
    before={
        "progress_seen": "test_edges.py::test_slow_work_goes_before_all_being_well",
    },
)
SLOW_LAUNCHES = Grounds(
    "slow_launches",
    Layer.NO_HANG,
    MEDIUM,
    "a rank repeatedly launches last and never waits itself",
    before={
        "progress_seen": "test_edges.py::test_late_launches_go_before_all_being_well",
    },
)
SLOW_STAGE = Grounds(
    "slow_stage",
    Layer.NO_HANG,
    MEDIUM,
    "one pipeline stage hardly ever waits while all others almost always do",
    before={
        "progress_seen": "test_edges.py::test_a_slow_stage_goes_before_all_being_well",
    },
)

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
_SHOWN = 5
_MOST_COMPARED = 64


@dataclass(frozen=True, slots=True)
class SlowWork:
    """The slow ranks, the one that costs most first."""

    ranks: tuple[OwnTime, ...]


@dataclass(frozen=True, slots=True)
class SlowLaunches:
    """The one rank that launches late, in a recording of this length."""

    rank: LateLaunches
    window_ms: float


@dataclass(frozen=True, slots=True)
class SlowStage:
    """The one rank that hardly waits: the share of the time that it waits, and the least of all others."""

    rank: int
    waits: float
    others_wait: float


_Slow = SlowWork | SlowLaunches | SlowStage


# ---- what it looks for -----------------------------------------------------------------------------------------------


def propose(case: Case) -> Iterator[Accusation[_Slow]]:
    """Ranks that take longer than their peers for the same work, again and again."""
    found = _by_own_time(case) or _by_launches(case) or _by_transfers(case)
    if found is not None:
        yield found


def _accusation(
    grounds: Grounds, facts: _Slow, ranks: list[int], doubts: list[Doubt] | None = None
) -> Accusation[_Slow]:
    accused = [Accused(rank, CauseKind.SLOW) for rank in ranks]
    return Accusation(grounds, CauseKind.SLOW, facts, accused, doubts=doubts or (), hang=False)


def _by_own_time(case: Case) -> Accusation[_Slow] | None:
    """Ranks that spend less time inside operations than others who made the same calls in the same time."""
    found = [item for item in case.stragglers.own if _is_slow(item) and _often(case, item)]
    most = max((item.cost_ms for item in found), default=0.0)
    chosen = [item for item in found if 2 * item.cost_ms >= most and not _passes_on(case, item, found)]
    if not chosen or len(chosen) * 2 > len(case.job.ranks):
        return None
    doubts = {
        Doubt.ONE_PEER: chosen[0].peers <= 1,
        Doubt.FEW_CONFIRM: any(item.late < _MANY_TIMES for item in chosen),
        Doubt.BOUND_ONLY: any(item.bound is Bound.AT_MOST for item in chosen),
    }
    return _accusation(SLOW_WORK, SlowWork(tuple(chosen)), [item.rank for item in chosen], doubts_where(doubts))


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


def _by_launches(case: Case) -> Accusation[_Slow] | None:
    """One rank whose collectives end as soon as it has launched them, while everybody else has long done so."""
    window_ms = case.stragglers.window_ms
    often = [i for i in case.stragglers.launches if i.times >= _LEAST_LAUNCHES and i.own_waits * 4 <= i.times]
    found = [item for item in often if item.cost_ms >= _SHARE_BY_LAUNCH * window_ms]
    if len(found) != 1:
        return None  # one that is late because of another cannot be distinguished from it
    return _accusation(SLOW_LAUNCHES, SlowLaunches(found[0], window_ms), [found[0].rank])


def _by_transfers(case: Case) -> Accusation[_Slow] | None:
    """The one stage of a pipeline that never waits, while all others do nothing else.

    A stage that is alone in its role has no peer to be compared with, and stages differ by design: only the extreme
    case says something.
    """
    shares = {rank: share for rank in case.job.ranks if (share := _waiting_share(case, rank)) is not None}
    if len(shares) < max(_LEAST_STAGES, len(case.job.ranks)):
        return None
    least, *others = sorted(shares, key=lambda rank: shares[rank])
    transfers = case.alignment.point_to_point[case.job.ops.span(least)].any()
    if shares[least] > _HARDLY or shares[others[0]] < _NEARLY_ALWAYS or not transfers:
        return None
    return _accusation(SLOW_STAGE, SlowStage(least, shares[least], shares[others[0]]), [least])


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


# ---- its words -------------------------------------------------------------------------------------------------------


def words(case: Case, accusation: Accusation[_Slow]) -> Words:
    slow = accusation.facts
    if isinstance(slow, SlowWork):
        share = _share_of_work(slow)
        each = {item.rank: _longer(item) for item in slow.ranks}
        why = [_work_finding(case, item) for item in slow.ranks[:_SHOWN]]
    elif isinstance(slow, SlowLaunches):
        late = slow.rank
        share = f"up to {late.cost_ms / slow.window_ms:.0%}"
        last = f"launched {late.times} of {late.collectives} collectives last"
        each = {late.rank: f"{last}, {late.late_ms:.0f} ms after the others (median)"}
        why = [Finding(f"rank {late.rank} {each[late.rank]}, and never waited itself", case.source(late.rank))]
    else:
        share = f"{slow.others_wait:.0%}"
        each = {slow.rank: f"waits {slow.waits:.0%} of the time, all others {share} or more"}
        why = [Finding(f"rank {slow.rank} {each[slow.rank]}, in transfers and collectives", case.source(slow.rank))]
    return _slow_words(case, accusation, share, each, why)


def _slow_words(
    case: Case, accusation: Accusation[_Slow], share: str, each: Mapping[int, str], why: list[Finding]
) -> Words:
    ranks = accusation.ranks
    frames = {rank: frame for rank in ranks[:_SHOWN] if (frame := _own_line(case, rank, ranks)) is not None}
    there = f", in {function_line(next(iter(frames.values())))}" if len(frames) == 1 else ""
    spent = [f"code: rank {rank} was at {line(frame)} ({frame.name}) in every sample" for rank, frame in frames.items()]
    profile = f"profile what {ranks_text(ranks)} {verb(ranks, 'does', 'do')} between collectives"
    nodes = dict.fromkeys(case.job.nodes[rank] for rank in ranks[:2] if rank in case.job.nodes)
    return who_did_what(
        case,
        accusation,
        f"{verb(ranks, 'keeps', 'keep')} the others waiting: {share} of the time{there}",
        "; nothing hangs.",
        why=why,
        steps=[
            *spent,
            f"{profile} (data loading, garbage collection, a throttled GPU or CPU)",
            *(f"node: compare {n} with the others: clocks, temperature, nvidia-smi -q -d PERFORMANCE" for n in nodes),
        ],
        each=each,
    )


def _own_line(case: Case, rank: int, slow: Sequence[int]) -> Frame | None:
    """The user's line at which every sample found a slow rank, outside any collective, and none of the others."""
    where = case.stacks.where(rank)
    if where is None or (not where.stack.child and in_collective(where.stack)) or in_backward(where.stack):
        return None
    others = (case.stacks.where(other) for other in case.job.ranks[:_MOST_COMPARED] if other not in slow)
    here = (where.frame.filename, where.frame.name)
    return None if any(o is not None and (o.frame.filename, o.frame.name) == here for o in others) else where.frame


def _share_of_work(slow: SlowWork) -> str:
    """``up to 31%``."""
    share = sum(item.cost_ms / item.span_ms for item in slow.ranks)
    return f"{slow.ranks[0].bound.value} {share:.0%}".lstrip()


def _longer(item: OwnTime) -> str:
    return f"takes {item.late_ms:.0f} ms longer than its peers for the same calls, {item.late} times"


def _work_finding(case: Case, item: OwnTime) -> Finding:
    met = case.job.ops[item.waited_row]
    text = f"for the same calls rank {item.rank} took {item.late_ms:.0f} ms longer than its peers, {item.late} times"
    where = f"{met.name}{at(met.frames)}"
    return entry(case, f"{text} in {item.span_ms / 1e3:.1f} s; others waited for that in {where}", met)


CAUSE = Cause(propose, words, (SLOW_WORK, SLOW_LAUNCHES, SLOW_STAGE), Asked.OF_A_JOB_THAT_RUNS)
