"""What is said where no rule names a cause: a hang nobody explains, progress on every rank, or that nobody can tell."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from hangscope.diagnosis.accusation import Accusation, Basis, Doubt
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.answer import Answer, Says, no, not_known, yes
from hangscope.diagnosis.evidence.code_lines import place
from hangscope.diagnosis.findings import who_waits
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Finding
from hangscope.model import State, WatchdogReport
from hangscope.text import numbered, plural, short

_SHOWN = 3


def hang_unexplained(case: Case) -> Iterator[Accusation]:
    """Something hangs, and the evidence does not say why."""
    lines = case.job.facts.watchdog
    reports = [r for r in lines if r.kind in ("timeout", "async_error")]
    wait = max(case.waits.all, key=lambda w: (w.age_s or 0.0, len(w.inside)), default=None)
    findings = [_timeout(r) for r in reports] or [
        Finding(f"rank {r.rank} heard from rank {r.signalled_by} that a collective timed out", (r.source,))
        for r in lines
        if r.signalled_by is not None
    ]
    found = findings[:_SHOWN] or [who_waits(case, wait) if wait is not None else Finding(case.hang.why)]
    named, waits = reports[0].operation if reports and wait is None else None, case.waits.all
    yield Accusation(Basis.HANG_UNEXPLAINED, "unknown", (), wait, findings=found, detail=named, explains=waits)


def _timeout(report: WatchdogReport) -> Finding:
    what = "timed out" if report.kind == "timeout" else "failed"
    after = f" after {report.elapsed_ms / 1e3:.0f} s" if report.elapsed_ms is not None else ""
    title = numbered(report.operation or "a collective", report.seq)
    return Finding(f"rank {report.rank}: {title} {what}{after}", (report.source,))


def progress_seen(case: Case) -> Iterator[Accusation]:
    """The job runs or ran to its end: seen on every rank, and no line of failure anywhere."""
    job = case.job
    runs = _runs(case)
    if runs.says is not Says.YES:
        return
    operations, dumps = plural(len(job.ops), "recorded operation"), plural(len(job.dumps), "rank")
    text = f"no rank waits for another in {operations} of {dumps}"
    if not len(job.ops):
        text = case.hang.why
    timed = bool(np.any(np.isfinite(job.ops.columns["duration_ms"].astype(float))))
    doubts = {*case.doubts_of_running, *(() if timed else [Doubt.NOT_TIMED])}
    findings = [Finding(text), *([Finding(case.hang.why)] if case.waits.all else [])]
    yield Accusation(Basis.PROGRESS_SEEN, "none", findings=findings, doubts=doubts, hang=False, detail=text)


def _runs(case: Case) -> Answer:
    """Does every rank of the job make progress, or has it come to a clean end?"""
    job = case.job
    ended = {r for r, p in job.processes.items() if p.exit_status == 0}
    if any(not f.effect for f in job.facts.failures) or job.facts.errors:
        return no()
    if set(job.ranks) <= ended and job.ranks:
        return yes()
    done = set(np.unique(job.ops.column("rank")[job.ops.column("state") == State.COMPLETED]).tolist())
    recorded = {r for r, mine in case.progress.of.items() if mine.own_record}
    moved = {r: process.moved for r, process in job.processes.items() if process.moved is not None}
    unseen = {r for r in set(job.ranks) - ended if not moved.get(r, r in done & recorded)}
    if not unseen and job.ranks:
        return yes()
    return not_known(f"no progress is recorded of {ranks_text(unseen) if unseen else 'any rank'}")


def cannot_tell(case: Case) -> Iterator[Accusation]:
    """Nothing hangs as far as can be seen, and not every rank was seen."""
    job = case.job
    stacks = case.stacks.of_all(job.ranks)
    mentioned = bool(len(job.ops) or job.dumps or job.facts.processes or job.facts.log_ranks or stacks)
    if not (mentioned or job.gaps or job.facts.failures or job.facts.errors):
        return
    runs = _runs(case)
    findings = [Finding(runs.limit)] if runs.limit else []
    errors = job.facts.errors[:_SHOWN]
    findings += [Finding(f"rank {e.rank}: {e.type}: {short(e.message)}", (e.source,)) for e in errors]
    if stacks and not len(job.ops):
        places = Counter(place(stack.frames) for stack in stacks.values()).most_common(_SHOWN)
        where = "; ".join(f"{plural(count, 'rank')} at {name}" for name, count in places if name)
        findings.append(Finding(f"main threads stand here: {where}", (next(iter(stacks.values())).source,)))
    if len(job.ops):
        operations = plural(len(job.ops), "recorded operation")
        findings.append(Finding(f"nothing hangs in {operations} of {ranks_text(job.dumps)}"))
    only = "only stacks were found" if stacks and not job.dumps and not job.facts.log_ranks else None
    yield Accusation(Basis.NOTHING_TO_TELL, "unknown", findings=findings, hang=False, detail=only)
