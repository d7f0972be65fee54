"""deadlock: ranks that wait for each other over several groups, because they use them in different orders."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits import Wait
from hangscope.diagnosis.words import ranks_text


def deadlock(case: Case) -> Draft | None:
    """A knot of waits with no way out: every rank in it waits for another one in it."""
    knots = case.waits.knots()
    if not knots:
        return None
    knot = max(knots, key=len)
    sides = _sides(case, knot)
    if len(sides) < 2:
        return None
    smallest = min(len(ranks) for _, ranks in sides)
    minority = [(wait, ranks) for wait, ranks in sides if len(ranks) == smallest]
    tied = len(minority) > 1 and len(minority) == len(sides)
    if len(minority) > 1:
        odd_by_history = _against_custom(case, sides)
        if odd_by_history:
            minority, tied = [s for s in sides if set(s[1]) & odd_by_history], False
    culprits = {
        rank: f"is inside {case.title(wait)} of {case.group_label(wait.group)}"
        for wait, ranks in minority
        for rank in ranks
    }
    largest_wait, _ = max(sides, key=lambda s: len(s[1]))
    names = ranks_text(culprits)
    why = [
        Finding(
            f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} inside {case.title(wait)} of "
            f"{case.group_label(wait.group)} "
            f"and {'waits' if len(ranks) == 1 else 'wait'} for {ranks_text(set(wait.blockers) & set(knot))}",
            case.source(ranks[0]),
            _line(case, wait),
        )
        for wait, ranks in sorted(sides, key=lambda s: -len(s[1]))
    ]
    inferred = any(case.standings.of[rank].source == "log" for rank in knot)
    order = [case.group_label(w.group) for w, _ in sides]
    summary_sides = "; ".join(
        f"{ranks_text(ranks)} in {case.title(w)} of {case.group_label(w.group)}" for w, ranks in sides[:3]
    )
    wrong = (
        "no side is in the minority"
        if tied
        else f"{names} {'uses' if len(culprits) == 1 else 'use'} the groups in another order than the rest"
    )
    return Draft(
        kind="deadlock",
        headline=f"ranks wait for each other over {len(set(order))} groups; {wrong}",
        summary=f"Deadlock over {len(set(order))} groups: {summary_sides}; {wrong}.",
        confidence="medium" if tied or inferred else "high",
        rule="deadlock: a cycle of waits over the groups; the minority side is accused"
        if not tied
        else "deadlock: a cycle of waits whose sides are equally large",
        culprits=culprits,
        wait=largest_wait,
        why=why,
        next_steps=[
            "code: make every rank use these groups in the same order: "
            + ", then ".join(dict.fromkeys([case.group_label(largest_wait.group), *order])),
            "NCCL 2.26 and newer can order them itself: NCCL_LAUNCH_ORDER_IMPLICIT=1",
        ],
        victims_of=set(culprits) if not tied else set(),
    )


def _sides(case: Case, knot: list[int]) -> list[tuple[Wait, list[int]]]:
    """The ranks of a knot by the operation that they are inside of."""
    by_wait: dict[int, tuple[Wait, list[int]]] = {}
    for rank in knot:
        waits = [w for w in case.waits.of[rank] if set(w.blockers) & set(knot)]
        if waits:
            by_wait.setdefault(id(waits[0]), (waits[0], []))[1].append(rank)
    return sorted(by_wait.values(), key=lambda side: (-len(side[1]), side[1]))


def _against_custom(case: Case, sides: list[tuple[Wait, list[int]]]) -> set[int]:
    """Where the sides are equally large: the ranks that now enter a group first which they used to enter second.

    Earlier rounds show the custom: after which group each rank used to turn to the group that it is inside of now.
    """
    ops = case.job.ops
    odd: set[int] = set()
    for wait, ranks in sides:
        for rank in ranks:
            unit = next(u for u in wait.inside if u.rank == rank)
            if unit.row is None:
                return set()
            rows = ops.rows(rank=rank)
            groups = ops.column("group")[rows].tolist()
            place = int((rows < unit.row).sum())
            if place < 2:
                return set()
            previous = groups[place - 1]
            before = Counter(a for a, b in pairwise(groups[:place]) if b == wait.group)
            if before and before.most_common(1)[0][0] != previous:
                odd.add(rank)
    return odd if 0 < len(odd) < sum(len(r) for _, r in sides) else set()


def _line(case: Case, wait: Wait) -> tuple[str, ...]:
    unit = wait.inside[0]
    operation = case.standings.operation(unit)
    return case.user_frames(operation.frames) if operation else ()
