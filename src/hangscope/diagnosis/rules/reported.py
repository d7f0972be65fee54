"""mismatch and absent from the watchdog's own lines, where dumps are missing: lower confidence, same questions."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.verdict import Finding, OperationInFlight
from hangscope.diagnosis.words import ranks_text, sentence
from hangscope.model import Source, State

_MAY_DIFFER = ("gather", "scatter", "all_gather", "reduce_scatter", "send", "recv", "coalesced")


def reported_mismatch(case: Case) -> Draft | None:
    """Ranks whose watchdog reports another operation or size than the others' for the same position."""
    for (group, seq), said in sorted(_positions(case).items()):
        votes = Counter(call for call, _ in said.values()).most_common()
        if len(votes) < 2 or votes[0][1] * 2 <= len(said):
            continue
        if votes[0][0][0] in _MAY_DIFFER or (votes[0][0][0].startswith("all_to_all") and len(votes) > 2):
            continue
        reference = votes[0][0]
        odd = {rank: call for rank, (call, _) in said.items() if call != reference}
        names = ranks_text(odd)
        first = min(odd)
        what = f"ran {_text(odd[first])} where the rest ran {_text(reference)} (#{seq})"
        members = case.groups[group].members or tuple(sorted(said))
        return Draft(
            kind="mismatch",
            headline=f"{names} {what}",
            summary=f"{sentence(names)} {what} in {case.group_label(group)}, as the watchdog's "
            f"lines say: the job hangs.",
            confidence="medium",
            rule="mismatch: the watchdog's lines of a majority disagree with the rank's",
            culprits=dict.fromkeys(odd, what),
            operation=OperationInFlight(
                group=case.group_label(group),
                members=members,
                seq=seq,
                name=reference[0],
                bytes=None,
                dtypes=(),
                state_by_rank={r: "scheduled" if r in said else "unknown" for r in members},
            ),
            why=[
                Finding(f"rank {rank} reports {_text(call)} at #{seq}", (source,))
                for rank, (call, source) in sorted(said.items(), key=lambda item: (item[0] not in odd, item[0]))[:4]
            ],
            next_steps=[
                f"code: compare what the ranks pass to {reference[0]} #{seq}; with dumps the line would be known"
            ],
        )
    return None


_Call = tuple[str, int | None, int | None]


def _text(call: _Call) -> str:
    return f"{call[0]} of {call[1]} elements" if call[1] is not None else call[0]


def _positions(case: Case) -> dict[tuple[int, int], dict[int, tuple[_Call, Source]]]:
    """(group, sequence number) → rank → what it says it runs there; only where at least one rank has no dump."""
    found: dict[tuple[int, int], dict[int, tuple[_Call, Source]]] = {}
    for report in case.job.facts.watchdog:
        if report.seq is None or report.operation is None or report.numel_in is None:
            continue
        group = case.standings.group_of(report.rank, report.group_name, report.group_desc)
        call = (report.operation, report.numel_in, report.numel_out)
        found.setdefault((group, report.seq), {}).setdefault(report.rank, (call, report.source))
    return {
        place: said
        for place, said in found.items()
        if len(said) >= 3 and any(not _has_whole_dump(case, r) for r in said)
    }


def _has_whole_dump(case: Case, rank: int) -> bool:
    standing = case.standings.of.get(rank)
    return standing is not None and standing.source == "dump" and standing.whole


def ran_ahead(case: Case) -> Draft | None:
    """A few ranks finished, and went past, a collective that nobody can finish alone: they ran something else there."""
    for wait in case.waits.all:
        if wait.point_to_point or wait.seq is None or not case.is_symmetric(wait) or not wait.finished:
            continue
        if len(wait.finished) >= len(wait.inside):
            continue
        ahead = [r for r in wait.finished if case.standings.of[r].completed.get(wait.group, -1) > wait.seq]
        if not ahead:
            continue
        names, title = ranks_text(wait.finished), case.title(wait)
        return Draft(
            kind="mismatch",
            headline=f"{names} went past {title}, which nobody can finish alone",
            summary=f"{sentence(names)} finished {title} of {case.group_label(wait.group)} "
            f"and went on, while "
            f"{ranks_text(wait.waiters)} are still inside it: they did not run the same operations.",
            confidence="low" if any(case.standings.of[r].source == "log" for r in wait.finished) else "medium",
            rule="mismatch: a minority is past a collective that needs everybody; what it ran instead is not recorded",
            culprits=dict.fromkeys(sorted(wait.finished), f"went past {title}, which its peers are still inside of"),
            wait=wait,
            why=[
                Finding(
                    f"{ranks_text(wait.waiters)} are inside {title}; {names} completed up to "
                    f"#{max(case.standings.of[r].completed.get(wait.group, -1) for r in wait.finished)}"
                )
            ],
            next_steps=[f"code: compare the calls of {names} before {title} with the others'; collect its dump"],
        )
    return None


def only_silent(case: Case) -> Draft | None:
    """Every other rank reported a timeout of its own; this one lives and did not: probably they wait for it."""
    if len(case.job.ops) and np.any(case.job.ops.column("state") != State.COMPLETED):
        return None
    complained = {r.rank for r in case.job.facts.watchdog if r.kind in ("timeout", "async_error")}
    answered = {r.rank for r in case.job.facts.watchdog} - complained
    rest = set(case.job.ranks) - complained
    if not answered or rest != answered or len(rest) * 4 > len(case.job.ranks):
        return None
    names = ranks_text(rest)
    report = next(r for r in case.job.facts.watchdog if r.rank in rest)
    wait = max(case.waits.all, key=lambda w: len(w.inside), default=None)
    return Draft(
        kind="absent",
        headline=f"{names} reported no timeout, all others did",
        summary=f"{sentence(names)} answered the others' signal but had nothing of its own to wait for; "
        f"all other {len(complained)} ranks timed out.",
        confidence="low",
        rule="absent: from logs alone, the only live ranks without a timeout of their own",
        culprits=dict.fromkeys(sorted(rest), "was alive and waited in nothing, while all others timed out"),
        wait=wait,
        why=[
            Finding(
                f"{ranks_text(complained)} reported a timeout of their own; {names} only answered the signal",
                (report.source,),
            )
        ],
        next_steps=["switch the flight recorder on to see what each rank was inside of; `hangscope env` prints how"],
    )
