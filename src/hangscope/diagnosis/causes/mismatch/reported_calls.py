"""mismatch, by the watchdog's own lines, where dumps are missing: ranks report different calls at one position."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangscope.diagnosis.accusation import LOW, MEDIUM, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding, OperationInFlight
from hangscope.model import Source
from hangscope.text import sentence, verb

REPORTED_CALLS_DIFFER = Grounds(
    "reported_calls_differ",
    Layer.OTHER_CALLS,
    MEDIUM,
    "the watchdog's lines of a majority disagree with the rank's",
    before={
        "reported_mismatch": "test_edges.py::test_what_each_rank_prints_goes_before_a_report_of_one",
    },
)

REPORTED_SIDES_DIFFER = Grounds(
    "reported_sides_differ",
    Layer.OTHER_CALLS,
    LOW,
    "the watchdog's lines name different operations at one number, and no majority",
)

_MAY_DIFFER = ("gather", "scatter", "all_gather", "reduce_scatter", "send", "recv", "coalesced")
_NOT_COMPARED = ("send", "recv", "coalesced")
"""Calls that are not the same on every rank of their group, or hide others behind one number."""
_LEAST_REPORTS = 3
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class ReportedCall:
    """What a line says that its rank runs."""

    name: str
    elements_in: int | None
    elements_out: int | None

    def __str__(self) -> str:
        return f"{self.name} of {self.elements_in} elements" if self.elements_in is not None else self.name


_Reports = dict[int, tuple[ReportedCall, Source]]


@dataclass(frozen=True, slots=True)
class Reported:
    """What the ranks report at one position, and the call that most of them do; None where no majority does one."""

    seq: int
    by_rank: Mapping[int, tuple[ReportedCall, Source]]
    reference: ReportedCall | None


def propose(case: Case) -> Iterator[Accusation[Reported]]:
    """Ranks whose watchdog reports another operation or size than the others' for the same position."""
    for (group, seq), reports in sorted(_positions(case).items()):
        names = {rank: (ReportedCall(call.name, None, None), source) for rank, (call, source) in reports.items()}
        if len(set(_calls(names))) > 1:
            reference = _most_called(names)
            if reference is None:
                yield _two_sides(case, group, Reported(seq, names, None))
            else:
                yield _accusation(case, group, Reported(seq, names, reference))
            return
        reference = _majority(reports)
        if reference is not None:
            yield _accusation(case, group, Reported(seq, reports, reference))
            return
        if _sizes_differ(case, seq, reports):
            yield _two_sides(case, group, Reported(seq, reports, None))
            return


def _sizes_differ(case: Case, seq: int, reports: _Reports) -> bool:
    """Whether ranks report one operation of one group with sizes that have to be alike, and no majority.

    A rank that reports two operations of that number is in two groups, and which line is about which is not sure.
    """
    calls = _calls(reports)
    said = {(r.rank, r.operation, r.numel_in, r.numel_out) for r in case.job.facts.watchdog if r.seq == seq}
    if max(Counter(rank for rank, operation, *_ in said if operation is not None).values(), default=0) > 1:
        return False
    known = len(calls) > 1 and all(call.elements_in is not None for call in calls)
    may_differ = calls[0].name.startswith("all_to_all") or calls[0].name in _MAY_DIFFER
    return known and not may_differ and len(set(calls)) > 1 and _is_group_named(case, Reported(0, reports, None))


def _positions(case: Case) -> dict[tuple[int, int], _Reports]:
    """(group, sequence number) → rank → what it says it runs there; only where at least one rank has no dump."""
    found: dict[tuple[int, int], _Reports] = {}
    for report in case.job.facts.watchdog:
        if report.seq is None or report.operation is None or report.operation in _NOT_COMPARED:
            continue
        call = ReportedCall(report.operation, report.numel_in, report.numel_out)
        position = (case.progress.group_of(report), report.seq)
        found.setdefault(position, {}).setdefault(report.rank, (call, report.source))
    own = {rank for rank, mine in case.progress.of.items() if mine.source == "dump" and mine.own_record}
    return {position: reports for position, reports in found.items() if not own.issuperset(reports)}


def _calls(reports: _Reports) -> list[ReportedCall]:
    return [call for call, _ in reports.values()]


def _most_called(reports: _Reports) -> ReportedCall | None:
    """The call of a majority of at least two; None where there is none."""
    reference, count = Counter(_calls(reports)).most_common(1)[0]
    return reference if count > 1 and count * 2 > len(reports) else None


def _majority(reports: _Reports) -> ReportedCall | None:
    """The call of a majority, where others report another size and should not."""
    if len(reports) < _LEAST_REPORTS or any(call.elements_in is None for call in _calls(reports)):
        return None
    votes = Counter(_calls(reports)).most_common()
    reference, count = votes[0]
    uneven = reference.name.startswith("all_to_all") and len(votes) > 2
    may_differ = uneven or reference.name in _MAY_DIFFER
    return reference if len(votes) > 1 and count * 2 > len(reports) and not may_differ else None


def _two_sides(case: Case, group: int, reported: Reported) -> Accusation[Reported]:
    """Different operations, and nobody can say which of them is wrong."""
    return Accusation(
        REPORTED_SIDES_DIFFER,
        CauseKind.MISMATCH,
        reported,
        operation=_operation(case, group, reported, reported.by_rank[min(reported.by_rank)][0].name),
        explains=[wait for wait in case.waits.all if wait.group == group],
    )


def _operation(case: Case, group: int, reported: Reported, name: str) -> OperationInFlight:
    members = case.groups[group].members or tuple(sorted(reported.by_rank))
    states = {rank: "scheduled" if rank in reported.by_rank else "unknown" for rank in members}
    return OperationInFlight(case.names.group(group), members, reported.seq, name, None, (), states)


def _accusation(case: Case, group: int, reported: Reported) -> Accusation[Reported]:
    assert reported.reference is not None
    odd = {rank: call for rank, (call, _) in sorted(reported.by_rank.items()) if call != reported.reference}
    return Accusation(
        REPORTED_CALLS_DIFFER,
        CauseKind.MISMATCH,
        reported,
        [Accused(rank, CauseKind.MISMATCH, str(call)) for rank, call in odd.items()],
        operation=_operation(case, group, reported, reported.reference.name),
        doubts=doubts_where({Doubt.FROM_LOGS: not _is_group_named(case, reported)}),
        explains=[wait for wait in case.waits.all if wait.group == group],
    )


def _is_group_named(case: Case, reported: Reported) -> bool:
    """Whether the lines say that they are about one group: else different groups may hide behind one number."""
    sources = {source for _, source in reported.by_rank.values()}
    return all(report.group_name is not None for report in case.job.facts.watchdog if report.source in sources)


def words(case: Case, accusation: Accusation[Reported]) -> Words:
    reported = accusation.facts
    operation = accusation.operation
    assert operation is not None
    if reported.reference is None:
        return _words_of_sides(accusation, operation)
    each = {
        a.rank: f"ran {a.operation} where the rest ran {reported.reference} (#{reported.seq})"
        for a in accusation.accused
    }
    step = f"code: compare what the ranks pass to {operation.name} #{reported.seq}; dumps would show the line"
    return who_did_what(
        case,
        accusation,
        each[accusation.ranks[0]],
        f" in {operation.group}, as the watchdog's lines say: the job hangs.",
        why=_findings(accusation),
        steps=[step],
        each=each,
    )


def _words_of_sides(accusation: Accusation[Reported], operation: OperationInFlight) -> Words:
    seq = accusation.facts.seq
    sides: dict[str, list[int]] = {}
    of_sizes = len({call.name for call, _ in accusation.facts.by_rank.values()}) == 1
    for rank, (call, _) in sorted(accusation.facts.by_rank.items()):
        sides.setdefault(str(call) if of_sizes else call.name, []).append(rank)
    text = ", ".join(f"{ranks_text(ranks)} {verb(ranks, 'runs', 'run')} {name}" for name, ranks in sides.items())
    return Words(
        headline=f"{text} at #{seq}",
        summary=f"{sentence(text)} at #{seq} of {operation.group}: they took different code paths.",
        why=_findings(accusation),
        steps=[f"code: find where the ranks diverge before #{seq} (a condition, a loop's length, a checkpoint)"],
    )


def _findings(accusation: Accusation[Reported]) -> list[Finding]:
    """What each rank reports, those that are accused first."""
    reported = accusation.facts
    accused = accusation.ranks
    in_order = sorted(reported.by_rank.items(), key=lambda item: (item[0] not in accused, item[0]))
    return [
        Finding(f"rank {rank} reports {call} at #{reported.seq}", (source,))
        for rank, (call, source) in in_order[:_SHOWN]
    ]


CAUSE = Cause(propose, words, (REPORTED_CALLS_DIFFER, REPORTED_SIDES_DIFFER))
