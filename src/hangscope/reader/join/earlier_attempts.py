"""Traces of earlier attempts among those of the newest: NCCL logs of processes that are long gone, appended logs.

A job that is restarted writes into the same folder, and often into the same files. What an earlier attempt said would
accuse ranks that are innocent this time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from hangscope.model import Failure, Gap, PythonError, Source, WatchdogReport
from hangscope.model.values import line_of, short_name
from hangscope.reader.join.nccl_processes import largest_communicators
from hangscope.reader.logs.nccl_logs import NcclProcess

APART_NS = 60 * 10**9
"""Two all-rank communicators without a common process that start this far apart are two attempts, not two halves."""
SILENCE_NS = 3600 * 10**9
"""Once a collective has failed the job ends within minutes; an hour between failures of one rank is another attempt."""

Processes = dict[tuple[str, int], NcclProcess]


def newest_processes(
    processes: Mapping[tuple[str, int], NcclProcess], listed: Iterable[tuple[str | None, int | None]]
) -> tuple[Processes, int | None, list[Gap]]:
    """(processes of the newest attempt, when its all-rank communicator began, what was left out).

    `listed` are processes (node, pid) that a roster knows: they belong to the attempt that it was written for.
    """
    size, holders = largest_communicators(processes)
    begun = _beginnings(processes, size)
    if not begun or begun.keys() != holders.keys():
        return dict(processes), None, []
    known = {(short_name(node), pid) for node, pid in listed if node is not None}

    def rank_of_attempt(ident: str) -> tuple[int, int]:
        return (sum((short_name(host), pid) in known for host, pid in holders[ident]), begun[ident])

    newest = max(holders, key=rank_of_attempt)
    related = [ident for ident, keys in holders.items() if keys & holders[newest]]
    old: set[tuple[str, int]] = set()
    for ident in holders.keys() - related:
        if abs(begun[ident] - begun[newest]) > APART_NS:
            old |= holders[ident]
    kept = {key: process for key, process in processes.items() if key not in old}
    gaps = [_processes_left_out([processes[key] for key in old])] if old else []
    return kept, min(begun[ident] for ident in related), gaps


def _beginnings(processes: Mapping[tuple[str, int], NcclProcess], size: int) -> dict[str, int]:
    """Communicators of that size → when the first of their processes began them."""
    begun: dict[str, int] = {}
    for process in processes.values():
        for comm in process.comms:
            if comm.size == size and comm.comm_id and comm.started_at_ns is not None:
                begun[comm.comm_id] = min(comm.started_at_ns, begun.get(comm.comm_id, comm.started_at_ns))
    return begun


def _processes_left_out(old: list[NcclProcess]) -> Gap:
    files = sorted(process.first_source.file for process in old if process.first_source is not None)
    why = f"their communicator is another than that of the newest attempt: {len(old)} were left out"
    return Gap("NCCL logs of an older attempt", why, source=Source(files[0]) if files else None)


def newest_reports(
    reports: list[WatchdogReport], errors: list[PythonError], start_ns: int | None
) -> tuple[list[WatchdogReport], list[PythonError], list[Gap]]:
    """Reports and errors without those of earlier attempts in the same logs.

    Times of log lines may be in another zone than NCCL's, so a report counts as old only where the same rank reports
    again later: behind the beginning of the newest attempt, or after a long silence. An exception above an old report
    of its rank in the same file is as old.
    """
    begins = _beginning_of_newest(reports, start_ns)
    old = [r for r in reports if r.at_ns is not None and r.at_ns < begins.get(r.rank, 0)]
    if not old:
        return reports, errors, []
    above: dict[tuple[str, int], int] = {}
    for report in old:
        key = (report.source.file, report.rank)
        above[key] = max(above.get(key, 0), line_of(report.source))
    kept_errors = [e for e in errors if e.rank is None or line_of(e.source) > above.get((e.source.file, e.rank), -1)]
    gaps = [_lines_left_out(file, rank, number) for (file, rank), number in sorted(above.items())]
    gone = {id(report) for report in old}
    return [r for r in reports if id(r) not in gone], kept_errors, gaps


def _lines_left_out(file: str, rank: int, number: int) -> Gap:
    what = f"an older attempt of rank {rank} in its log"
    return Gap(what, "what it says before that line was left out", rank, None, Source(file, f"line {number}"))


def _beginning_of_newest(reports: Iterable[WatchdogReport], start_ns: int | None) -> dict[int, int]:
    """Rank → the moment before which its reports are of an older attempt."""
    failures: dict[int, list[int]] = {}
    for report in reports:
        if report.at_ns is not None and report.kind in {"timeout", "async_error", "cuda_error", "watchdog_stuck"}:
            failures.setdefault(report.rank, []).append(report.at_ns)
    return {rank: _cut(sorted(times), start_ns) for rank, times in failures.items()}


def newest_failures(failures: list[Failure], old: Iterable[Gap]) -> list[Failure]:
    """Failures without those above an older attempt's last report, `old` being the gaps that `newest_reports` made.

    A failure of nobody in particular is as old as the lines around it: older than every rank's in that file.
    """
    above: dict[str, dict[int, int]] = {}
    for gap in old:
        if gap.source is not None and gap.rank is not None:
            above.setdefault(gap.source.file, {})[gap.rank] = line_of(gap.source)
    kept = []
    for failure in failures:
        cuts = above.get(failure.source.file, {})
        cut = cuts.get(failure.rank, -1) if failure.rank is not None else min(cuts.values(), default=-1)
        if line_of(failure.source) > cut:
            kept.append(failure)
    return kept


def _cut(times: list[int], start_ns: int | None) -> int:
    """The moment before which a rank's reports are of an older attempt."""
    cut = 0
    for earlier, later in pairwise(times):
        if later - earlier > SILENCE_NS:
            cut = later
    if start_ns is not None and times[0] < start_ns <= times[-1]:
        cut = max(cut, start_ns)
    return cut
