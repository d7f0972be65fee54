"""deadlock: ranks that wait for each other over several groups, because they use them in different orders."""

from __future__ import annotations

from hangscope.diagnosis.align import is_guessed
from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.rules.departed import departure_finding
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits import Wait
from hangscope.diagnosis.words import ranks_text

_MANY_TIMES = 4
_SIDES_SHOWN = 8


def deadlock(case: Case) -> Draft | None:
    """A knot of waits with no way out: every rank in it waits for another one in it."""
    knot = case.knot
    sides = _sides(case, knot)
    if len(sides) < 2:
        return None
    odd = case.departures
    smallest = min(len(ranks) for _, ranks in sides)
    minority = [(wait, [r for r in ranks if r in odd]) for wait, ranks in sides if set(odd) & set(ranks)]
    minority = minority or [(wait, ranks) for wait, ranks in sides if len(ranks) == smallest]
    if not odd and len(minority) == len(sides):
        minority = _lonely(sides) or minority
    tied = not odd and len(minority) == len(sides)
    culprits = {
        rank: f"is inside {case.title(wait)} of {case.group_label(wait.group)}"
        for wait, ranks in minority
        for rank in ranks
    }
    due = {int(case.job.ops.column("group")[departure.own_row]) for departure in odd.values()}
    missed = [w for w, _ in sides if set(culprits) & set(w.blockers) - set(w.waiters)] or [w for w, _ in sides]
    wait = max(missed, key=lambda w: (w.group in due, len(w.inside)))
    names = ranks_text(culprits)
    why = [
        Finding(
            f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} inside {case.title(wait)} of "
            f"{case.group_label(wait.group)} "
            f"and {'waits' if len(ranks) == 1 else 'wait'} for {ranks_text(set(wait.blockers) & set(knot))}",
            case.source(ranks[0]),
            _line(case, wait),
        )
        for wait, ranks in sorted(sides, key=lambda s: -len(s[1]))[:_SIDES_SHOWN]
    ]
    why[:0] = [departure_finding(case, departure) for departure in list(odd.values())[:2]]
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
        wait=wait,
        why=why,
        next_steps=[
            "code: make every rank use these groups in the same order: "
            + ", then ".join(dict.fromkeys([case.group_label(wait.group), *order])),
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


def _line(case: Case, wait: Wait) -> tuple[str, ...]:
    unit = wait.inside[0]
    operation = case.standings.operation(unit)
    return case.user_frames(operation.frames) if operation else ()
