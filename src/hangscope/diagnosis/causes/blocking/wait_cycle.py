"""deadlock: ranks that wait for each other with no way out, because they use their groups in different orders."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import HIGH, Accusation, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.cycle_sides import Side, Sides, accused_inside, cycle_words
from hangscope.diagnosis.findings import outlier_finding, who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.text import verb

WAIT_CYCLE = Grounds(
    "wait_cycle",
    Layer.MISSED_RANKS,
    HIGH,
    "a cycle of waits over the groups; the minority side is accused",
    needs_members=True,
    before={
        "end_seen": "test_edges.py::test_a_cycle_goes_before_an_end_that_nobody_waits_for",
    },
)

_MANY_TIMES = 4
_SIDES_SHOWN = 8
_OUTLIERS_SHOWN = 2


# ---- what it looks for -----------------------------------------------------------------------------------------------


def propose(case: Case) -> Iterator[Accusation[Sides]]:
    """Ranks that wait for each other. Who called something unusual there, else the minority, is accused."""
    sides = _sides(case)
    if len(sides) < 2 or _only_numbers_in_one_group(sides):
        return
    minority = _minority(case, sides)
    apart = _of_groups_apart(case, sides)
    if apart and _ranks(apart).isdisjoint(_ranks(minority)):
        minority = apart
    inside = {rank: side.wait for side in minority for rank in side.ranks}
    tied = not case.outliers and (len(minority) == len(sides) or (minority is apart and len(apart) > 1))
    yield Accusation(
        WAIT_CYCLE,
        CauseKind.DEADLOCK,
        Sides(tuple(sides), tied),
        accused_inside(case, inside),
        _missed(case, sides, set(inside)),
        doubts=_doubts(case, sides, minority, tied),
        explains=[side.wait for side in sides],
        all_sides=tied,
    )


def _sides(case: Case) -> list[Side]:
    """The ranks of the cycle by the operation that they are inside of."""
    members = set(case.cycle)
    by_wait: dict[int, tuple[Wait, list[int]]] = {}
    for rank in case.cycle:
        waits = [wait for wait in case.waits.of[rank] if not members.isdisjoint(wait.blockers)]
        if waits:
            by_wait.setdefault(id(waits[0]), (waits[0], []))[1].append(rank)
    sides = [Side(wait, tuple(ranks)) for wait, ranks in by_wait.values()]
    return sorted(sides, key=lambda side: (-len(side.ranks), side.ranks))


def _only_numbers_in_one_group(sides: list[Side]) -> bool:
    """In one group, the numbers in logs say who is behind, and not in which order they called."""
    one_group = len({side.wait.group for side in sides}) == 1
    inside = [unit for side in sides for unit in side.wait.inside]
    return one_group and not any(unit.rows or unit.arguments is not None for unit in inside)


def _minority(case: Case, sides: list[Side]) -> list[Side]:
    """Whose calls are unusual; else the smallest sides; of equal ones that whose operation hardly anybody entered,
    where each other one has many times as many ranks inside."""
    odd = case.outliers
    unusual = [Side(side.wait, ranks) for side in sides if (ranks := tuple(r for r in side.ranks if r in odd))]
    if unusual:
        return unusual
    parts = _by_making_groups(sides)
    if len({_entered(part) for part in parts}) == 2:
        return min(parts, key=_entered)
    deciding = _deciding(case, sides)
    smallest = min(len(side.ranks) for side in deciding)
    found = [side for side in deciding if len(side.ranks) == smallest]
    if odd or len(found) < len(deciding):
        return found
    first, *others = sorted(found, key=lambda side: len(side.wait.waiters))
    hardly_entered = all(len(side.wait.waiters) >= _MANY_TIMES * len(first.wait.waiters) for side in others)
    return [first] if hardly_entered else found


def _by_making_groups(sides: list[Side]) -> list[list[Side]]:
    """Who makes groups, one after the other, and who is somewhere else."""
    making = [side for side in sides if any(unit.makes_group_of for unit in side.wait.inside)]
    return [part for part in (making, [side for side in sides if side not in making]) if part]


def _of_groups_apart(case: Case, sides: list[Side]) -> list[Side]:
    """The ranks of the cycle that do not agree on what a group is made of: one of these is wrong, and nobody else."""
    disagree = {rank for apart in case.groups_apart for claim in (apart.one, apart.other) for rank in claim.ranks}
    return [Side(side.wait, ranks) for side in sides if (ranks := tuple(r for r in side.ranks if r in disagree))]


def _ranks(sides: list[Side]) -> set[int]:
    return {rank for side in sides for rank in side.ranks}


def _entered(sides: list[Side]) -> int:
    """How many ranks are inside, also those that are not in the cycle."""
    return len({rank for side in sides for rank in side.wait.waiters})


def _deciding(case: Case, sides: list[Side]) -> list[Side]:
    """Without those who only wait for a pair that waits for each other: they come on as soon as the pair does."""
    blockers = {rank: set(case.waits.blockers(rank)) for rank in case.cycle}
    pairs = {a for a in blockers if any(a in blockers.get(b, ()) for b in blockers[a])}
    return [side for side in sides if not pairs.isdisjoint(side.ranks)] or sides


def _missed(case: Case, sides: list[Side], accused: set[int]) -> Wait:
    """The operation that the accused should have come to first."""
    missed = [side.wait for side in sides if accused.intersection(side.wait.blockers).difference(side.wait.waiters)]
    due = {int(case.job.ops.column("group")[outlier.own_row]) for outlier in case.outliers.values()}
    return max(missed or [side.wait for side in sides], key=lambda wait: (wait.group in due, len(wait.inside)))


def _doubts(case: Case, sides: list[Side], minority: list[Side], tied: bool) -> list[Doubt]:
    pair = any(len(case.groups[side.wait.group].members or ()) == 2 for side in minority)
    accused = {rank for side in minority for rank in side.ranks}
    return doubts_where(
        {
            Doubt.OTHER_GROUPS_POSSIBLE: any(members_not_recorded(case.groups[side.wait.group]) for side in sides),
            Doubt.TWO_SIDES: tied,
            Doubt.BY_ARGUMENTS: any(u.arguments is not None for side in sides for u in side.wait.inside),
            Doubt.ONE_PEER: pair and not case.outliers,
            Doubt.SHOWN_BY_OTHERS: any(case.progress.of[rank].source == "counters" for rank in case.cycle),
            Doubt.MANY_ACCUSED: len(accused) * 4 > len(case.cycle) > 4,
        }
    )


# ---- its words -------------------------------------------------------------------------------------------------------


def words(case: Case, accusation: Accusation[Sides]) -> Words:
    unusual = [outlier_finding(case, outlier) for outlier in list(case.outliers.values())[:_OUTLIERS_SHOWN]]
    largest_first = sorted(accusation.facts.sides, key=lambda side: -len(side.ranks))
    in_each = [_finding(case, side) for side in largest_first[:_SIDES_SHOWN]]
    return cycle_words(case, accusation, accusation.facts, why=[*unusual, *in_each])


def _finding(case: Case, side: Side) -> Finding:
    ranks = side.ranks
    awaited = ranks_text(set(side.wait.blockers).intersection(case.cycle))
    text = f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} inside {case.names.wait_in_group(side.wait)} and "
    text += f"{verb(ranks, 'waits', 'wait')} for {awaited}"
    asked = next((u.arguments.source for u in side.wait.inside if u.rank == ranks[0] and u.arguments is not None), None)
    sources = (asked,) if asked is not None else case.source(ranks[0])
    return Finding(text, sources, who_waits(case, side.wait).detail)


CAUSE = Cause(propose, words, (WAIT_CYCLE,))
