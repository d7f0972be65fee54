"""A rank that the others wait for, and that is at work: a save, an evaluation, a compilation.

Nobody can know whether it comes back, so it is not called a hang while it works.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hangscope.diagnosis.accusation import Accusation
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.evidence.code_lines import line
from hangscope.diagnosis.evidence.process_ends import sources
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import Process
from hangscope.text import sentence, verb

_MAY_WORK = (CauseKind.ABSENT, CauseKind.FROZEN)
"""Of a stuck GPU or link, or of calls that do not fit, work is no sign that it goes on."""
_BUSY = 0.05
ANNOUNCE = (
    "if this is intentional (evaluation, a checkpoint), announce it in the code with `hangscope.expect_pause()`, or "
    "raise --stall-after"
)


def is_at_work(case: Case, accusation: Accusation[Any]) -> bool:
    """Whether every accused rank was seen to work while the others waited, and PyTorch has not given up on it.

    A snapshot may be of a job that has only begun: there its threads' work is not enough, its stacks must go on too.
    """
    job = case.job
    if not (job.stood_still or job.reason == "snapshot") or not accusation.hang or not accusation.accused:
        return False
    if any(report.kind == "timeout" for report in job.facts.watchdog):
        return False
    ranks = [accused.rank for accused in accusation.accused]
    if not job.stood_still and not all(case.stacks.advances(rank) for rank in ranks):
        return False
    return all(accused.kind in _MAY_WORK and _works(case, accused.rank) for accused in accusation.accused)


def may_be_at_work(case: Case, accusation: Accusation[Any]) -> tuple[int, ...]:
    """The accused whose main threads woke up again and again: they poll, or try something anew, and it is not known
    whether that gets anywhere. Inside an operation of its own a rank waits, however it does that."""
    if not accusation.hang or is_at_work(case, accusation):
        return ()
    kinds = {accused.rank: accused.kind for accused in accusation.accused}
    found = []
    for rank in accusation.ranks:
        process = case.job.processes.get(rank)
        if process is not None and process.polls is True and kinds.get(rank) is CauseKind.ABSENT:
            found.append(rank)
    return tuple(found)


def with_polls(case: Case, accusation: Accusation[Any], words: Words) -> Words:
    """The same wait, and what is not known about the ranks that poll."""
    ranks = may_be_at_work(case, accusation)
    if not ranks:
        return words
    wakes = (
        f"{ranks_text(ranks)} {verb(ranks, 'wakes', 'wake')} up again and again: {verb(ranks, 'it polls', 'they poll')}"
    )
    text = f"{wakes} or {verb(ranks, 'tries', 'try')} something anew, and whether that gets anywhere is not known"
    processes = [process for rank in ranks[:1] if (process := case.job.processes.get(rank)) is not None]
    findings = [Finding(text, sources(process)) for process in processes]
    return replace(words, why=[*words.why, *findings], steps=[*words.steps, ANNOUNCE])


def _works(case: Case, rank: int) -> bool:
    process = case.job.processes.get(rank)
    return process is not None and process.works is True


def with_work(case: Case, accusation: Accusation[Any], words: Words) -> Words:
    """The same wait, in words that leave open whether it hangs."""
    ranks = accusation.ranks
    wait = accusation.wait
    waiting = sorted(rank for rank, waits in case.waits.of.items() if waits and rank not in ranks)
    who = ranks_text(waiting) if waiting else "the others"
    waits = verb(waiting, "waits", "wait") if waiting else "wait"
    works = [_at_work(case, rank) for rank in ranks]
    same = works[0] if len(set(works)) == 1 else "at work"
    are = verb(ranks, "is", "are")
    same_wait = wait is not None and set(waiting) == set(wait.waiters).difference(ranks)
    inside = f" in {case.names.wait_in_group(wait)}" if wait is not None and same_wait else ""
    text = f"{who} {waits} for {ranks_text(ranks)}, which {are} {same}"
    at_length = f"{who} {waits}{inside} for {case.names.ranks(ranks)}, which {are} {same}"
    return replace(
        words,
        headline=text,
        summary=f"{sentence(at_length)}. Whether it will finish is unknown.",
        why=[*words.why, *_findings(case, ranks)],
        each={rank: f"is {work}" for rank, work in zip(ranks, works, strict=True)},
        steps=[*_steps(case, ranks), ANNOUNCE],
    )


def _at_work(case: Case, rank: int) -> str:
    where = case.stacks.where(rank)
    return "at work" if where is None else f"working in {where.text}"


def _steps(case: Case, ranks: Sequence[int]) -> list[str]:
    found = []
    for rank in ranks[:2]:
        where = case.stacks.where(rank)
        at = f" at {line(where.frame)}" if where is not None else ""
        found.append(f"wait: rank {rank} works{at}, and the job may go on by itself; if it never does, look there")
    return found


def _findings(case: Case, ranks: Sequence[int]) -> list[Finding]:
    processes = [process for rank in ranks[:4] if (process := case.job.processes.get(rank)) is not None]
    return [
        Finding(f"rank {process.rank} {_used(process)} while the others waited", sources(process))
        for process in processes
    ]


def _used(process: Process) -> str:
    """``used 83 % of a core``, ``read and wrote 2.1 MB a second``."""
    share = process.cpu_share or 0.0
    if share > _BUSY:
        return f"used {share:.0%} of a core"
    return f"read and wrote {(process.io_bytes_per_s or 0.0) / 1e6:.1f} MB a second"
