"""deadlock: ranks that wait for each other over several groups, because they use them in different orders."""

from __future__ import annotations

import numpy as np

from hangscope.diagnosis.align import is_guessed
from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits import Wait
from hangscope.diagnosis.words import ranks_text

_MANY_TIMES = 4


def deadlock(case: Case) -> Draft | None:
    """A knot of waits with no way out: every rank in it waits for another one in it."""
    knots = case.waits.knots()
    if not knots:
        return None
    knot = max(knots, key=len)
    sides = _sides(case, knot)
    if len(sides) < 2:
        return None
    odd = _against_custom(case, sides)
    smallest = min(len(ranks) for _, ranks in sides)
    minority = [(wait, [r for r in ranks if r in odd]) for wait, ranks in sides if odd & set(ranks)]
    minority = minority or [(wait, ranks) for wait, ranks in sides if len(ranks) == smallest]
    if not odd and len(minority) == len(sides):
        minority = _lonely(sides) or minority
    tied = not odd and len(minority) == len(sides)
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
    guessed = any(is_guessed(case.groups[w.group]) for w, _ in sides)
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
        confidence="low" if guessed else "medium" if tied or inferred or len(culprits) * 4 > len(knot) > 4 else "high",
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


def _lonely(sides: list[tuple[Wait, list[int]]]) -> list[tuple[Wait, list[int]]]:
    """The side whose operation hardly anybody entered, where each other one has many times as many ranks inside."""
    ordered = sorted(sides, key=lambda side: len(side[0].waiters))
    alone, next_one = len(ordered[0][0].waiters), len(ordered[1][0].waiters)
    return ordered[:1] if next_one >= _MANY_TIMES * alone else []


def _sides(case: Case, knot: list[int]) -> list[tuple[Wait, list[int]]]:
    """The ranks of a knot by the operation that they are inside of."""
    by_wait: dict[int, tuple[Wait, list[int]]] = {}
    for rank in knot:
        waits = [w for w in case.waits.of[rank] if set(w.blockers) & set(knot)]
        if waits:
            by_wait.setdefault(id(waits[0]), (waits[0], []))[1].append(rank)
    return sorted(by_wait.values(), key=lambda side: (-len(side[1]), side[1]))


def _against_custom(case: Case, sides: list[tuple[Wait, list[int]]]) -> set[int]:
    """The ranks that entered their operation with fewer calls of another side's group behind them than they used to.

    In earlier rounds the distance between the two groups' sequence numbers was always the same on a rank; a rank that
    is now one short has turned to the second group first.
    """
    odd: set[int] = set()
    everyone = 0
    for wait, ranks in sides:
        others = {w.group for w, _ in sides} - {wait.group}
        for rank in ranks:
            everyone += 1
            short = any(_is_short(case, rank, wait, group) for group in others)
            waiting = [other for other, _ in sides if rank in other.blockers]
            short = short or any(_out_of_rhythm(case, rank, other.group) for other in waiting)
            if short or any(_behind_siblings(case, rank, wait, other) for other in waiting):
                odd.add(rank)
    return odd if len(odd) * 2 <= everyone else set()  # custom is what most do


def _out_of_rhythm(case: Case, rank: int, group: int) -> bool:
    """Whether a rank made fewer calls of a group between its last two calls of another one than it always did."""
    ops = case.job.ops
    rows = ops.rows(rank=rank)
    rows = rows[~case.alignment.point_to_point[rows]]
    groups = ops.column("group")[rows]
    made = np.cumsum(groups == group)
    for other in np.unique(groups[groups != group]).tolist():
        steps = np.diff(made[groups == other])
        # Several calls of the other group in a row have nothing in between: compare the last round with whole rounds.
        rounds = steps[steps > 0]
        if len(rounds) >= 3 and np.all(rounds[1:-1] == rounds[-2]) and steps[-1] > 0 and rounds[-1] < rounds[-2]:
            return True
    return False


def _behind_siblings(case: Case, rank: int, wait: Wait, other: Wait) -> bool:
    """Whether those who entered the same operation had made one more call in their own group of that kind.

    Groups of one kind (description and size) advance together, so the others' counts say what was due.
    """
    if other.seq is None or other.point_to_point:
        return False
    kind = case.groups[other.group]
    alike = {g.index for g in case.groups if g.desc == kind.desc and len(g.members or ()) == len(kind.members or ())}
    ops = case.job.ops
    behind = ahead = 0
    for unit in wait.inside:
        if unit.rank == rank or unit.row is None:
            continue
        rows = ops.rows(rank=unit.rank)
        rows = rows[(rows < unit.row) & ~case.alignment.point_to_point[rows]]
        latest = [int(ops.column("seq")[rows[ops.column("group")[rows] == g]].max(initial=-1)) for g in alike]
        near = [seq for seq in latest if abs(seq - other.seq) <= 2]
        ahead += any(seq >= other.seq for seq in near)
        behind += bool(near) and all(seq < other.seq for seq in near)
    return ahead > behind


def _is_short(case: Case, rank: int, wait: Wait, group: int) -> bool:
    ops = case.job.ops
    rows = ops.rows(rank=rank)
    rows = rows[~case.alignment.point_to_point[rows]]
    groups, seqs = ops.column("group")[rows], ops.column("seq")[rows]
    if not np.any(groups == group):
        return False
    behind = np.maximum.accumulate(np.where(groups == group, seqs, -1))
    mine = (groups == wait.group) & (behind >= 0)
    distance = (behind - seqs)[mine]
    return len(distance) >= 2 and bool(np.all(distance[:-1] == distance[-2])) and int(distance[-1]) < int(distance[-2])


def _line(case: Case, wait: Wait) -> tuple[str, ...]:
    unit = wait.inside[0]
    operation = case.standings.operation(unit)
    return case.user_frames(operation.frames) if operation else ()
