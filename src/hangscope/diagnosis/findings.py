"""Findings that several rules cite."""

from collections.abc import Collection

from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.code_lines import at, ended_in, shown
from hangscope.diagnosis.evidence.process_ends import raised, speaker
from hangscope.diagnosis.hardware import xids
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.waits.call_order import Outlier
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import Failure, KernelMessage, Operation, PythonError, Source, TransportEvent, WatchdogReport
from hangscope.text import plural, short, verb


def cited(text: str, source: Source | None) -> Finding:
    return Finding(text, () if source is None else (source,))


def entry(case: Case, text: str, *operations: Operation, frames: bool = False) -> Finding:
    """A sentence with the recorded calls that it speaks of, and the lines from which the first was made."""
    sources = tuple(source for operation in operations for source in case.source(operation.rank, operation))
    return Finding(text, sources, shown(operations[0].frames) if frames else ())


def outlier_finding(case: Case, outlier: Outlier) -> Finding:
    """What a rank called, and what the others did after the same calls before it."""
    call = case.job.ops[outlier.row]
    usual = case.job.ops[outlier.usual_row]
    due = case.job.ops[outlier.own_row].group
    who = f"{outlier.votes} earlier rounds of its own"
    if usual.rank != call.rank:
        who = plural(outlier.other_ranks, "other rank")
    went_on = f"{call.title} of {case.names.group(call.group.index)}{at(call.frames)}"
    expected = f"{usual.name} of {case.names.group(due.index)}{at(usual.frames)}"
    text = f"after the same calls before it, rank {outlier.rank} continued with {went_on}; usual there, in "
    return entry(case, f"{text}{who}, is {expected}", call, usual)


def who_waits(case: Case, wait: Wait, accused: Collection[int] = ()) -> Finding:
    """Who is inside an operation, and from where it was called."""
    waiters = [r for r in wait.waiters if r not in accused] or list(wait.waiters)
    init = case.progress.comm_inits.get(wait.group)
    if init is not None:
        text = f"{ranks_text(waiters)} began the init of {case.names.group(wait.group)}, and no rank completed it"
        return cited(text, init.source)
    unit = next((u for u in wait.inside if u.rank in waiters), wait.inside[0])
    operation = case.progress.operation(unit)
    text = f"{ranks_text(waiters)} {verb(waiters, 'is', 'are')} inside {case.names.wait_in_group(wait)}"
    source = case.source(unit.rank, operation) or _reports_of(case, unit.rank, unit.report)
    frames, learnt = (case.frames_of(operation), case.sites.frames(operation)) if operation else ((), ())
    if at(learnt) and not frames:
        text = f"{text}, called{at(learnt)} (as in earlier steps)"
        frames = learnt
    return Finding(text, source, shown(frames))


def _reports_of(case: Case, rank: int, report: WatchdogReport | None) -> tuple[Source, ...]:
    """The watchdog's line that says where a rank is: its own report, else the one with its counters."""
    counted = (one for one in case.job.facts.watchdog if one.rank == rank and one.last_enqueued is not None)
    found = report or next(counted, None)
    return () if found is None else (found.source,)


def printed(error: PythonError) -> Finding:
    return Finding(f"rank {error.rank} printed {raised(error)}", (error.source,), ended_in(error.frames))


def quoted(line: TransportEvent | Failure) -> Finding:
    """A line of NCCL's log, or of a failure, with who wrote it."""
    named = f", naming {ranks_text(line.ranks)}" if isinstance(line, Failure) and line.ranks else ""
    by = f"NCCL on {speaker(line)}" if isinstance(line, TransportEvent) else f"{_writer(line)}{named}"
    beside = line.beside if isinstance(line, Failure) else ()
    return Finding(f"{by}: {short(line.text, 200)}", (line.source, *beside))


def _writer(line: Failure) -> str:
    """Whose line of failure it is; a line that names nobody is the log's."""
    if line.kind.startswith("launcher_"):
        return "the launcher"
    return speaker(line) if line.rank is not None or line.node is not None else "the log"


def kernel_lines(messages: list[KernelMessage]) -> list[Finding]:
    return [Finding(f"kernel: {m.text[:160]}{xids.note(m.code)}", (m.source,)) for m in messages[:2]]
