"""mismatch from the watchdog's own lines, where dumps are missing: lower confidence, same questions."""

from collections import Counter
from collections.abc import Iterator

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt
from hangscope.diagnosis.align.agreement import is_symmetric
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.findings import who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Finding, OperationInFlight
from hangscope.model import Source

_MAY_DIFFER = ("gather", "scatter", "all_gather", "reduce_scatter", "send", "recv", "coalesced")

_Call = tuple[str, int | None, int | None]


def reported_calls(case: Case) -> Iterator[Accusation]:
    """Ranks whose watchdog reports another operation or size than the others' for the same position."""
    for (group, seq), said in sorted(_positions(case).items()):
        votes = Counter(call for call, _ in said.values()).most_common()
        reference, count = votes[0]
        may_differ = reference[0] in _MAY_DIFFER or (reference[0].startswith("all_to_all") and len(votes) > 2)
        if len(votes) < 2 or count * 2 <= len(said) or may_differ:
            continue
        odd = {rank: _text(call) for rank, (call, _) in sorted(said.items()) if call != reference}
        members = case.groups[group].members or tuple(sorted(said))
        states = {r: "scheduled" if r in said else "unknown" for r in members}
        order = sorted(said.items(), key=lambda item: (item[0] not in odd, item[0]))
        found = [Finding(f"rank {r} reports {_text(call)} at #{seq}", (by,)) for r, (call, by) in order[:4]]
        accused = [Accused(rank, "mismatch", text, text=_text(reference)) for rank, text in odd.items()]
        operation = OperationInFlight(case.names.group(group), members, seq, reference[0], None, (), states)
        basis, waits = Basis.REPORTED_CALLS_DIFFER, [w for w in case.waits.all if w.group == group]
        yield Accusation(basis, "mismatch", accused, operation=operation, findings=found, explains=waits)
        return


def _text(call: _Call) -> str:
    return f"{call[0]} of {call[1]} elements" if call[1] is not None else call[0]


def _positions(case: Case) -> dict[tuple[int, int], dict[int, tuple[_Call, Source]]]:
    """(group, sequence number) → rank → what it says it runs there; only where at least one rank has no dump."""
    found: dict[tuple[int, int], dict[int, tuple[_Call, Source]]] = {}
    for report in case.job.facts.watchdog:
        if report.seq is None or report.operation is None or report.numel_in is None:
            continue
        call = (report.operation, report.numel_in, report.numel_out)
        place = (case.progress.group_of(report), report.seq)
        found.setdefault(place, {}).setdefault(report.rank, (call, report.source))
    own = {rank for rank, mine in case.progress.of.items() if mine.source == "dump" and mine.own_record}
    return {place: said for place, said in found.items() if len(said) >= 3 and not own.issuperset(said)}


def went_past(case: Case) -> Iterator[Accusation]:
    """A few ranks finished, and went past, a collective that nobody can finish alone: they ran something else there."""
    for wait in case.waits.all:
        if wait.point_to_point or wait.seq is None or not is_symmetric(wait.name):
            continue
        past = [case.progress.of[r] for r in wait.finished]
        up_to = max((mine.completed.get(wait.group, -1) for mine in past), default=-1)
        if up_to <= wait.seq or len(past) >= len(wait.inside):
            continue
        accused = [Accused(rank, "mismatch", case.names.wait(wait)) for rank in sorted(wait.finished)]
        found = [who_waits(case, wait), Finding(f"{ranks_text(wait.finished)} completed up to #{up_to}")]
        doubts = [Doubt.FROM_LOGS] if any(mine.source == "counters" for mine in past) else ()
        yield Accusation(Basis.WENT_PAST, "mismatch", accused, wait, findings=found, doubts=doubts)
        return
