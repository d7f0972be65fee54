"""mismatch, by tracebacks alone: ranks whose collective timed out had called it from different lines.

Gloo has no watchdog and no numbers: what timed out raises in the caller, and its traceback says where each rank waited.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangscope.diagnosis.accusation import LOW, Accusation, Accused, Doubt, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.evidence.code_lines import line, own_frames, shown
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import Frame, WatchdogReport
from hangscope.text import plural, sentence, verb

REPORTED_LINES_DIFFER = Grounds(
    "reported_lines_differ",
    Layer.LAST_RESORT,
    LOW,
    "the ranks' tracebacks end in calls from different lines, and nothing shows which calls belong together",
    before={
        "odd_stack": "test_edges.py::test_tracebacks_of_a_timeout_go_before_stacks_alone",
    },
)

_NOT_COMPARED = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
"""Calls that are made from one line on some ranks and from another on their peers."""
_MOST_LINES = 4
"""Ranks at more different lines than these do different things, rather than the same thing from two branches."""
_FRAMES_SHOWN = 3

_Place = tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class ReportedLines:
    """Where the ranks waited, by their own tracebacks, and where most of them did; None where no majority is."""

    by_rank: Mapping[int, WatchdogReport]
    usual: _Place | None


def propose(case: Case) -> Iterator[Accusation[ReportedLines]]:
    """Ranks that waited in a collective called from another line than most, where each rank that is known of waited."""
    reports = {
        report.rank: report
        for report in reversed(case.job.facts.watchdog)
        if report.seq is None and report.operation is not None and own_frames(report.frames)
    }
    if not _may_be_compared(case, reports):
        return
    places = Counter(map(_place, reports.values()))
    if not 1 < len(places) <= _MOST_LINES:
        return
    usual, count = places.most_common(1)[0]
    majority = count * 2 > len(reports)
    odd = [rank for rank in sorted(reports) if majority and _place(reports[rank]) != usual]
    yield Accusation(
        REPORTED_LINES_DIFFER,
        CauseKind.MISMATCH,
        ReportedLines(dict(sorted(reports.items())), usual if majority else None),
        [Accused(rank, CauseKind.MISMATCH) for rank in odd],
        doubts=[Doubt.OTHER_GROUPS_POSSIBLE],
        explains=case.waits.all,
    )


def _may_be_compared(case: Case, reports: Mapping[int, WatchdogReport]) -> bool:
    """Whether all ranks waited in collectives: one timed out, and none is known to have done anything else.

    A rank that failed by itself, or of which nothing is known, is what the others may have waited for.
    """
    timed_out = any(report.kind == "timeout" for report in reports.values())
    collective = all(report.operation not in _NOT_COMPARED for report in reports.values())
    failed = any(not error.consequence for error in case.job.facts.errors)
    return timed_out and collective and not failed and len(reports) > 1 and set(reports) == set(case.job.ranks)


def _place(report: WatchdogReport) -> _Place:
    """The lines of the user's code through which the rank came to its call."""
    return tuple(own_frames(report.frames))


def words(case: Case, accusation: Accusation[ReportedLines]) -> Words:
    reports = accusation.facts.by_rank
    sides: dict[_Place, list[int]] = {}
    for rank, report in reports.items():
        sides.setdefault(_place(report), []).append(rank)
    ordered = sorted(sides.items(), key=lambda side: (side[0] == accusation.facts.usual, side[1]))
    why = [
        Finding(
            f"{ranks_text(ranks)} waited in {reports[ranks[0]].operation}, called from here",
            tuple(reports[rank].source for rank in ranks[:2]),
            shown(place, _FRAMES_SHOWN),
        )
        for place, ranks in ordered
    ]
    step = "code: find the branch, or the loop of another length, by which the ranks came to different calls"
    if not accusation.accused:
        text = ", ".join(f"{ranks_text(ranks)} in {_call(reports[ranks[0]])}" for _, ranks in ordered)
        summary = f"{sentence(text)}: they came to different calls, and each waited for the others in its own."
        return Words(text, summary, why, steps=[step])
    ranks = accusation.ranks
    usual = next(report for report in reports.values() if _place(report) == accusation.facts.usual)
    others = plural(sum(rank not in ranks for rank in reports), "rank")
    return who_did_what(
        case,
        accusation,
        f"waited in {_call(reports[ranks[0]])}, the other {others} in {_call(usual)}",
        f": {verb(ranks, 'it', 'they')} came to another call than the rest, as the tracebacks show.",
        why=why,
        steps=[step],
        each={rank: f"waited in {_call(reports[rank])}" for rank in ranks},
        place=False,
    )


def _call(report: WatchdogReport) -> str:
    return f"{report.operation} at {line(own_frames(report.frames)[0])}"


CAUSE = Cause(propose, words, (REPORTED_LINES_DIFFER,))
