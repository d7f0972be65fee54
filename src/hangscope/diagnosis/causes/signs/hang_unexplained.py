"""unknown: something hangs, and the evidence does not say why."""

from collections.abc import Iterator
from dataclasses import replace

from hangscope.diagnosis.accusation import LOW, Accusation, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.advice import BY_CALL, COLLECT, SWITCH_ON, recorder_was_off
from hangscope.diagnosis.causes.shared.blockers import gone_agents
from hangscope.diagnosis.evidence.code_lines import shown
from hangscope.diagnosis.findings import who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding, OperationInFlight
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import UNKNOWN, FailureKind, WatchdogReport
from hangscope.text import duration, numbered, sentence, verb

HANG_UNEXPLAINED = Grounds("hang_unexplained", Layer.NO_CAUSE, LOW, "a hang that the evidence does not explain")

_SHOWN = 3
_PLACES = 4
_FRAMES_SHOWN = 4


def propose(case: Case) -> Iterator[Accusation[None]]:
    """The operation that has hung longest, and nobody accused."""
    wait = max(case.waits.all, key=lambda w: (w.age_s or 0.0, len(w.inside)), default=None)
    operation = _together(case, wait) if wait is not None else None
    yield Accusation(HANG_UNEXPLAINED, CauseKind.UNKNOWN, None, wait=wait, operation=operation, explains=case.waits.all)


def _together(case: Case, wait: Wait) -> OperationInFlight | None:
    """Calls that no recorder has are one wait a rank: the same call of all of them is one operation here."""
    ranks = _waiters(case, wait)
    if wait.seq is not None or len(ranks) < 2:
        return None
    return replace(case.operation_of(wait), members=tuple(ranks), state_by_rank=dict.fromkeys(ranks, "scheduled"))


def words(case: Case, accusation: Accusation[None]) -> Words:
    wait = accusation.wait
    what = _what(case, wait)
    waiters = _waiters(case, wait)
    does = "failed" if wait is not None and wait.only_failed else verb(waiters, "waits", "wait")
    who = f"{case.names.ranks(waiters)} {does} in" if waiters else "the job hangs in"
    age = f" for {duration(wait.age_s)}" if wait is not None and wait.age_s is not None else ""
    unseen = _unseen(case)
    rest = "the cause is not determined" if case.hang.age_known else "for how long is unknown"
    if unseen or not (case.job.dumps or waiters):
        rest = f"there is no evidence from {ranks_text(unseen) if unseen else 'the other ranks'}"
        rest += gone_agents(case, unseen)
    step = BY_CALL.get(
        what.split(" ")[0] if "<-" in what or "->" in what else what, COLLECT if case.job.dumps or unseen else SWITCH_ON
    )
    return Words(
        headline=f"{who} {what}{age}; {rest}",
        summary=f"{sentence(who)} {what}{age}, and {rest}: the evidence does not name the cause.",
        why=_findings(case, wait),
        steps=[] if recorder_was_off(case) else [step],
    )


def _what(case: Case, wait: Wait | None) -> str:
    if wait is not None:
        return case.names.wait(wait)
    reports = _timeouts(case)
    operation = reports[0].operation if reports else None
    if operation is None and _is_elsewhere(case):
        return "a collective of a group other than the default one, which ran none"
    return operation or "a collective"


def _is_elsewhere(case: Case) -> bool:
    """Whether whoever reports a timeout does so with the counters of a group that never ran anything."""
    reports = [report for report in case.job.facts.watchdog if report.own_timeout]
    return bool(reports) and all(report.last_enqueued == UNKNOWN == report.last_completed for report in reports)


def _waiters(case: Case, wait: Wait | None) -> list[int]:
    """Who waits in it, or else reported it. Calls that no recorder has are one wait a rank."""
    if wait is None:
        own = {report.rank for report in case.job.facts.watchdog if report.own_timeout}
        return sorted(own or _reported(case))
    not_recorded = wait.seq is None
    alike = [w for w in case.waits.all if w is wait or (not_recorded and w.name == wait.name)]
    return sorted({rank for w in alike for rank in w.waiters})


def _reported(case: Case) -> set[int]:
    return {report.rank for report in case.job.facts.watchdog}


def _unseen(case: Case) -> list[int]:
    waiting = {rank for rank, waits in case.waits.of.items() if waits}
    return sorted(set(case.job.ranks) - set(case.job.dumps) - _reported(case) - waiting)


def _timeouts(case: Case) -> list[WatchdogReport]:
    return [report for report in case.job.facts.watchdog if report.kind in ("timeout", "async_error")]


def _findings(case: Case, wait: Wait | None) -> list[Finding]:
    findings = [_timeout(report) for report in _timeouts(case)] or list(_signals(case))
    findings = [*findings[:_SHOWN], *(_waits_elsewhere(case) if findings else ())]
    if not findings and (wait is None or not case.stacks.of_all(case.job.ranks)):
        findings = [who_waits(case, wait) if wait is not None else Finding(case.hang.why)]
    return [*findings, *_places(case), *_moved(case)]


def _places(case: Case) -> list[Finding]:
    """Where the ranks are, those that are in one operation at one line together; where few are, first."""
    together: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    stacks = case.stacks.of_all(case.job.ranks)
    for rank, stack in stacks.items():
        waits = case.waits.of.get(rank, ())
        inside = f"inside {case.names.wait_of(waits[0], rank)} of {case.names.group(waits[0].group)}" if waits else ""
        together.setdefault((inside, shown(stack.frames, _FRAMES_SHOWN)), []).append(rank)
    found = []
    for (inside, lines), ranks in sorted(together.items(), key=lambda item: (len(item[1]), item[1]))[:_PLACES]:
        text = f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} {f'{inside}, ' if inside else ''}here"
        found.append(Finding(text, (stacks[ranks[0]].source,), lines))
    if len(together) > _PLACES:
        found.append(Finding(f"the others are at {len(together) - _PLACES} more places: `hangscope stacks` shows all"))
    return found


def _moved(case: Case) -> list[Finding]:
    moved = sorted(rank for rank, process in case.job.processes.items() if process.moved)
    text = f"{ranks_text(moved)} {verb(moved, 'was', 'were')} at another place in the next look"
    return [Finding(text)] if moved else []


def _waits_elsewhere(case: Case) -> list[Finding]:
    """Waits of another library in the same job: Gloo's beside NCCL's."""
    lines = [f for f in case.job.facts.failures if f.kind is FailureKind.WAIT_TIMEOUT and f.detail]
    who = [case.names.ranks([line.rank]) if line.rank is not None else "the log" for line in lines[:1]]
    return [Finding(f"{name}: {line.detail}", (line.source,)) for name, line in zip(who, lines, strict=False)]


def _timeout(report: WatchdogReport) -> Finding:
    what = "timed out" if report.kind == "timeout" else "failed"
    after = f" after {report.elapsed_ms / 1e3:.0f} s" if report.elapsed_ms is not None else ""
    title = numbered(report.operation or "a collective", report.seq)
    return Finding(f"rank {report.rank}: {title} {what}{after}", (report.source,))


def _signals(case: Case) -> Iterator[Finding]:
    for report in case.job.facts.watchdog:
        if report.own_timeout:
            yield Finding(f"rank {report.rank} says that a collective of its own timed out", (report.source,))
        if report.signalled_by is not None:
            text = f"rank {report.rank} heard from rank {report.signalled_by} that a collective timed out"
            yield Finding(text, (report.source,))


CAUSE = Cause(propose, words, (HANG_UNEXPLAINED,))
