"""deadlock, or mismatch over several groups: ranks that wait for each other with no way out, and who started it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt, Sides, doubts_where
from hangscope.diagnosis.align.agreement import members_not_recorded
from hangscope.diagnosis.align.call_order import Sort, outliers
from hangscope.diagnosis.case import Case, size_and_types
from hangscope.diagnosis.findings import outlier_finding, who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Finding, OperationInFlight
from hangscope.diagnosis.waits.wait_graph import Because, Wait
from hangscope.model import Operation
from hangscope.text import verb

_MANY_TIMES = 4
_SIDES_SHOWN = 8

_Side = tuple[Wait, list[int]]


def call_order(case: Case) -> Iterator[Accusation]:
    """Ranks of a wait cycle that left a call out, or made one that nobody else makes: no mere change of order."""
    if not case.cycle or {outlier.sort for outlier in case.outliers.values()} not in ({Sort.SKIPPED}, {Sort.EXTRA}):
        return
    found = sorted(case.outliers.values(), key=lambda outlier: outlier.rank)
    first = found[0]
    accused, findings = [Accused(o.rank, "mismatch") for o in found], [outlier_finding(case, o) for o in found[:3]]
    operation = _in_flight(case, case.job.ops[first.usual_row if first.sort is Sort.SKIPPED else first.row])
    waits = [w for rank in case.cycle for w in case.waits.of[rank]]
    doubts = [Doubt.FEW_CONFIRM] if len(found) > 1 or first.few_votes else ()
    about = Accusation(Basis.CALL_ORDER, "mismatch", accused, findings=findings, doubts=doubts, explains=waits)
    yield replace(about, operation=operation, detail=first)


def _in_flight(case: Case, operation: Operation) -> OperationInFlight | None:
    """The operation that the cycle hangs on, as its waiters see it."""
    for wait in case.waits.all:
        if any(unit.row == operation.row for unit in wait.inside):
            return case.operation_of(wait)
    group, state = case.names.group(operation.group.index), {operation.rank: operation.state.name.lower()}
    call = (operation.seq, operation.name, *size_and_types(operation))
    return OperationInFlight(group, operation.group.members or (operation.rank,), *call, state, operation.frames)


def unusual_order(case: Case) -> Iterator[Accusation]:
    """Ranks whose call nobody else makes there, where a rank that is not seen hides whether the waits are a cycle."""
    hidden = {r for w in case.waits.all for r, because in w.blockers.items() if because is Because.NOT_KNOWN}
    if case.cycle or not hidden:
        return
    waiting = sorted(rank for rank, waits in case.waits.of.items() if waits)
    found = [o for o in outliers(case.progress, waiting, len(case.job.ranks)).values() if o.sort is Sort.ORDER]
    inside = {o.rank: case.waits.of[o.rank][0] for o in found}
    if not inside or len(inside) * 4 > len(case.job.ranks):
        return
    sides, accused = Sides([(w, [rank]) for rank, w in inside.items()], tied=False), _accused(case, inside)
    findings, doubts = [outlier_finding(case, outlier) for outlier in found[:3]], [Doubt.VOTES_MISSING]
    wait, waits = inside[min(inside)], case.waits.all
    yield Accusation(
        Basis.ORDER_UNUSUAL, "deadlock", accused, wait, findings=findings, doubts=doubts, detail=sides, explains=waits
    )


def _accused(case: Case, inside: Mapping[int, Wait]) -> list[Accused]:
    return [Accused(rank, "deadlock", case.names.wait_in_group(w)) for rank, w in sorted(inside.items())]


def deadlock(case: Case) -> Iterator[Accusation]:
    """Ranks that wait for each other, because they use their groups in different orders."""
    sides, odd = _sides(case, case.cycle), case.outliers
    one_group = len({w.group for w, _ in sides}) == 1
    if len(sides) < 2 or (one_group and not any(u.rows for w, _ in sides for u in w.inside)):
        return  # in one group, the numbers in logs say who is behind, and not in which order they called
    minority = _minority(case, sides)
    tied = not odd and len(minority) == len(sides)
    inside = {rank: wait for wait, ranks in minority for rank in ranks}
    due = {int(case.job.ops.column("group")[outlier.own_row]) for outlier in odd.values()}
    missed = [w for w, _ in sides if set(inside) & set(w.blockers) - set(w.waiters)] or [w for w, _ in sides]
    findings = [outlier_finding(case, outlier) for outlier in list(odd.values())[:2]]
    findings += [_finding(case, side) for side in sorted(sides, key=lambda s: -len(s[1]))[:_SIDES_SHOWN]]
    found = {
        Doubt.OTHER_GROUPS_POSSIBLE: any(members_not_recorded(case.groups[w.group]) for w, _ in sides),
        Doubt.TWO_SIDES: tied,
        Doubt.ONE_PEER: not odd and any(len(case.groups[w.group].members or ()) == 2 for w, _ in minority),
        Doubt.SHOWN_BY_OTHERS: any(case.progress.of[rank].source == "counters" for rank in case.cycle),
        Doubt.MANY_ACCUSED: len(inside) * 4 > len(case.cycle) > 4,
    }
    wait, waits = max(missed, key=lambda w: (w.group in due, len(w.inside))), [w for w, _ in sides]
    accused, detail, doubts = _accused(case, inside), Sides(sides, tied), doubts_where(found)
    yield Accusation(
        Basis.WAIT_CYCLE, "deadlock", accused, wait, findings=findings, doubts=doubts, detail=detail, explains=waits
    )


def _finding(case: Case, side: _Side) -> Finding:
    wait, ranks = side
    text = f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} inside {case.names.wait_in_group(wait)} and "
    text += f"{verb(ranks, 'waits', 'wait')} for {ranks_text(set(wait.blockers) & set(case.cycle))}"
    return Finding(text, case.source(ranks[0]), who_waits(case, wait).detail)


def _minority(case: Case, sides: list[_Side]) -> list[_Side]:
    """Whose calls are unusual; else the smallest sides; of equal ones that whose operation hardly anybody entered,
    where each other one has many times as many ranks inside."""
    odd = case.outliers
    if unusual := [(wait, [r for r in ranks if r in odd]) for wait, ranks in sides if set(odd) & set(ranks)]:
        return unusual
    # Who only waits for a pair that waits for each other comes on as soon as they do.
    blockers = {rank: set(case.waits.blockers(rank)) for rank in case.cycle}
    pairs = {a for a in blockers if any(a in blockers.get(b, ()) for b in blockers[a])}
    sides = [(wait, ranks) for wait, ranks in sides if not pairs.isdisjoint(ranks)] or sides
    smallest = min(len(ranks) for _, ranks in sides)
    found = [(wait, ranks) for wait, ranks in sides if len(ranks) == smallest]
    first, second, *_ = sorted(sides, key=lambda side: len(side[0].waiters))
    lonely = len(second[0].waiters) >= _MANY_TIMES * len(first[0].waiters)
    return [first] if lonely and not odd and len(found) == len(sides) else found


def _sides(case: Case, cycle: list[int]) -> list[_Side]:
    """The ranks of a cycle by the operation that they are inside of."""
    members = set(cycle)
    by_wait: dict[int, _Side] = {}
    for rank in cycle:
        waits = [w for w in case.waits.of[rank] if not members.isdisjoint(w.blockers)]
        if waits:
            by_wait.setdefault(id(waits[0]), (waits[0], []))[1].append(rank)
    return sorted(by_wait.values(), key=lambda side: (-len(side[1]), side[1]))
