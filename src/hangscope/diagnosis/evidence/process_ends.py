"""The processes of a job, counted and joined: how they ended, who does not answer, whom NCCL's RAS lost."""

from __future__ import annotations

import signal
from collections import Counter

from hangscope.model import Failure, Job, Process, PythonError, RasReport, Source, TransportEvent
from hangscope.text import first_line

GONE = ("gone", "Z")
EFFECTS = (-signal.SIGABRT, -signal.SIGTERM, 128 + signal.SIGABRT, 128 + signal.SIGTERM)
"""How watchdogs and launchers end the rest of a job."""
_LEAST_COUNTED = 3
_NAMED = 3


class Ends:
    """How and when the processes of a job ended, asked for all but one of them."""

    def __init__(self, job: Job) -> None:
        everyone = job.processes.values()
        self._others = len(job.processes) - 1
        self._statuses = Counter(p.exit_status for p in everyone if p.exit_status is not None)
        self.gone = sum(p.state in GONE for p in everyone)
        self.running = sum(runs(p) for p in everyone)
        times = sorted(p.ended_at_s for p in everyone if p.ended_at_s is not None)
        self._times = times if len(times) < 4 else [*times[:2], *times[-2:]]
        self.causes = [r for r, p in job.processes.items() if p.exit_status not in (None, 0, *EFFECTS)]
        ended = {r: p.ended_at_s for r, p in job.processes.items() if p.exit_status not in (None, 0)}
        self.failed = {r: at_s for r, at_s in ended.items() if at_s is not None}

    def most(self, status: int) -> bool:
        """Whether most of the others ended in the same way."""
        return (self._statuses[status] - 1) * 2 > self._others

    def besides(self, process: Process) -> tuple[float | None, float | None]:
        """When the first and the last of the others ended."""
        times = list(self._times)
        if process.ended_at_s in times:
            times.remove(process.ended_at_s)
        return (times[0], times[-1]) if times else (None, None)


def sources(process: Process) -> tuple[Source, ...]:
    return (process.source,) if process.source else ()


def speaker(event: TransportEvent | Failure) -> str:
    """Who a line is about, as far as it says."""
    return f"rank {event.rank}" if event.rank is not None else event.node or "a rank"


def raised(error: PythonError) -> str:
    """``ValueError: loss is NaN``."""
    return f"{error.type}: {first_line(error.message)}"


def runs(process: Process) -> bool:
    return process.exit_status is None and process.state not in GONE


def silent_python(job: Job) -> dict[int, tuple[str, tuple[Source, ...]]]:
    """Ranks none of whose Python threads answers, with how that was seen and where: something holds the GIL."""
    found: dict[int, tuple[str, tuple[Source, ...]]] = {}
    for report in job.facts.watchdog:
        if report.kind == "gil":
            found.setdefault(
                report.rank, (f"rank {report.rank}'s monitor thread could not take the GIL", (report.source,))
            )
    for rank, process in job.processes.items():
        if process.python_answers is False and process.state not in GONE:
            text = f"rank {rank}'s process lives, but no Python thread answers: something holds the GIL"
            found[rank] = (text, (process.source,) if process.source else ())
    return found


def lost_to_ras(job: Job, lives: set[int]) -> tuple[dict[int, Source], dict[int, Source]]:
    """Ranks that NCCL's RAS could not reach, and those that it considers dead, with the source.

    An answer that lacks a rank which shows life elsewhere, or most of the job, did not ask them: it says nothing.
    """
    by_pid = {p.pid: r for r, p in job.processes.items() if p.pid is not None}
    unreachable: dict[int, Source] = {}
    dead: dict[int, Source] = {}
    for report in job.facts.ras:
        lost: dict[int, bool] = {}
        entries = [entry for entry in report.ranks if entry.missing or entry.unresponsive or entry.dead]
        for entry in entries:
            rank = by_pid.get(entry.pid) if entry.pid is not None else entry.global_rank
            if rank is None and report.size == job.world_size:
                rank = entry.rank
            if rank is not None:
                lost[rank] = lost.get(rank, False) or entry.dead
        if lost.keys() & lives or len(entries) * 2 >= report.size:
            continue
        unreachable = dict.fromkeys(lost, report.source) | unreachable
        dead = {rank: report.source for rank, gone in lost.items() if gone} | dead
    return unreachable, dead


def odd_in_ras(job: Job) -> tuple[dict[int, str], Source] | None:
    """Ranks that NCCL's RAS could not reach, or that launched another number of collectives than most, and the answer.

    Counts only of the largest communicator that RAS knows: who waits in one group is behind in others, too.
    """
    lost, _ = lost_to_ras(job, set())
    if lost:
        return dict.fromkeys(sorted(lost), "gave no answer to NCCL's RAS"), lost[min(lost)]
    largest = max((max(report.size, report.largest) for report in job.facts.ras), default=0)
    last = {report.comm_id: report for report in job.facts.ras if report.size == largest}
    found = [(odd, report.source) for report in last.values() if (odd := _odd_counts(report))]
    return found[0] if len(found) == 1 else None


def _odd_counts(report: RasReport) -> dict[int, str]:
    members = [e for e in report.ranks if e.rank < report.size and e.counts]
    counts = {e.global_rank: dict(e.counts) for e in members if e.global_rank is not None}
    if len(counts) < max(_LEAST_COUNTED, report.size):
        return {}
    usual = dict(Counter(tuple(sorted(mine.items())) for mine in counts.values()).most_common(1)[0][0])
    odd: dict[int, str] = {}
    for rank, mine in counts.items():
        names = sorted(name for name in {*mine, *usual} if mine.get(name, 0) != usual.get(name, 0))
        if names:
            times = ", ".join(f"{n} {mine.get(n, 0)} times, not {usual.get(n, 0)}" for n in names[:_NAMED])
            odd[rank] = f"launched {times}, by NCCL's RAS"
    return odd if len(odd) * 2 < len(counts) else {}


def ending(process: Process) -> str:
    """``was ended by SIGKILL``, ``exited with status 1``."""
    status = process.exit_status
    if status is None:
        return "is gone"
    if status < 0:
        try:
            return f"was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"was ended by signal {-status}"
    if status == 0:
        return "exited by itself with status 0 while the others went on"
    return f"exited with status {status}"
