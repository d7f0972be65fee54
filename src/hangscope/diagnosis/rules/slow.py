"""slow: nothing hangs, but one rank makes all others wait again and again."""

from __future__ import annotations

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.gaps import own_times
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.words import ranks_text

_SHARE = 0.15
_SHARE_BY_CLOCK = 0.3
_SHARE_BY_CLOCK_ALONE = 0.25
"""A rank is slow when waiting for it costs this share of the recorded time (more where only clocks tell)…"""
_ALONE = 0.8
_OF_ALL_WAITING = 0.5
"""…and this share of all waiting is for it."""
_LEAST_TIMES = 4


def slow(case: Case) -> Draft | None:
    """Ranks that came last by themselves often enough to cost a good part of every step."""
    return _by_waiting(case) or _by_own_time(case)


def _by_own_time(case: Case) -> Draft | None:
    """One rank that takes longer than its peers between the same two calls, on its own clock."""
    result = case.tardiness
    if not result.timed or result.window_ms <= 0:
        return None  # without timing nothing tells the one that is slow from those that wait for it
    # Who waits as much as it takes longer is kept waiting, and not slow.
    found = [
        item
        for item in own_times(case.alignment)
        if item.extra_ms >= _SHARE * result.window_ms and result.waited_ms[item.rank] <= item.extra_ms / 2
    ]
    if len(found) != 1:
        return None
    top = found[0]
    share = top.extra_ms / result.window_ms
    operation = case.job.ops[top.row]
    line = case.user_frame(operation.frames)
    before = f" before {operation.title}" + (f" at {line.filename}:{line.line}" if line else "")
    each = top.extra_ms / top.rounds
    return Draft(
        kind="slow",
        hang=False,
        headline=f"rank {top.rank} takes longer than its peers{before}: {share:.0%} of the time",
        summary=f"Nothing hangs, but {case.who(top.rank)} takes {each:.0f} ms longer than its peers{before}, "
        f"{top.rounds} times: {share:.0%} of the recorded time.",
        confidence="medium",
        rule="slow: on its own clock a rank takes longer than its peers between the same two calls",
        culprits={top.rank: f"takes {each:.0f} ms longer than its peers{before}"},
        why=[
            Finding(
                f"between the same two calls rank {top.rank} takes {each:.0f} ms longer than its peers, "
                f"{top.rounds} times",
                case.source(top.rank, operation),
            )
        ],
        next_steps=[f"profile what rank {top.rank} does{before} (data loading, garbage collection, a throttled CPU)"],
    )


def _by_waiting(case: Case) -> Draft | None:
    result = case.tardiness
    if not result.ranks or result.window_ms <= 0:
        return None
    top = result.ranks[0]
    alone = top.share_of_step * result.window_ms >= _ALONE * result.total_cost_ms
    least = _SHARE if result.timed else _SHARE_BY_CLOCK if not alone else _SHARE_BY_CLOCK_ALONE
    chosen = [
        item
        for item in result.ranks
        if item.share_of_step >= max(least, top.share_of_step / 2) and item.times_last >= _LEAST_TIMES
    ]
    # Ranks that are late wherever they come are the source; the rest passes it on.
    chosen = [item for item in chosen if item.rank in result.everywhere] or chosen
    waited = sum(item.share_of_step for item in chosen) * result.window_ms
    if not chosen or len(chosen) * 2 > len(case.job.ranks) or waited < _OF_ALL_WAITING * result.total_cost_ms:
        return None
    culprits = {
        item.rank: f"came last {item.times_last} times, by {item.late_ms_median:.0f} ms each (median)"
        for item in chosen
    }
    share = sum(item.share_of_step for item in chosen)
    names = ranks_text(culprits)
    why = [
        Finding(
            f"rank {item.rank} came last to {item.times_last} of {item.operations} collectives, by "
            f"{item.late_ms_median:.0f} ms (median): "
            f"{item.share_of_step:.0%} of the recorded {result.window_ms / 1e3:.1f} s",
            case.source(item.rank),
        )
        for item in chosen[:5]
    ]
    who = case.who(chosen[0].rank) if len(chosen) == 1 else names
    return Draft(
        kind="slow",
        hang=False,
        headline=f"{names} {'keeps' if len(chosen) == 1 else 'keep'} the others waiting: {share:.0%} of the time",
        summary=f"Nothing hangs, but {who} {'is' if len(chosen) == 1 else 'are'} late in collective "
        f"after collective and "
        f"{'costs' if len(chosen) == 1 else 'cost'} the others {share:.0%} of the recorded time.",
        confidence="high"
        if result.timed and top.times_last >= 8 and waited >= 0.7 * result.total_cost_ms
        else "medium",
        rule="slow: one rank comes last by itself, again and again",
        culprits=culprits,
        why=why,
        next_steps=[
            f"profile what {names} does between collectives (data loading, garbage collection, a throttled GPU or CPU)",
            *(
                f"node: compare {case.job.nodes[i.rank]} with the others: clocks, temperature, nvidia-smi "
                f"-q -d PERFORMANCE"
                for i in chosen[:2]
                if i.rank in case.job.nodes
            ),
        ],
    )
