"""Whether a process ended of its own, or because the job around it was being taken down.

A process that ended is a cause only if it ended first. PyTorch's watchdog aborts every victim in the end (SIGABRT), and
launchers stop the rest of a job with SIGTERM, then SIGKILL: those ends are effects. So is the end of a process whose
only exception says that a collective timed out or that a peer went away, even where it was the first to give up.
"""

import signal
from functools import cached_property
from heapq import nlargest

from hangscope.diagnosis.align.column_tools import grouped
from hangscope.diagnosis.evidence.process_ends import EFFECTS, GONE, Ends, is_running
from hangscope.model import AFTER_HANG, FATAL_ERROR, Failure, FailureKind, Job, Process

# Exceptions that say who was stopped, not that a peer was lost.
_ORDERED = ("KeyboardInterrupt", "SystemExit", FATAL_ERROR)
# A process that ended this much before all others ended by itself, whatever its status says.
_FIRST_BY_S = 2.0
_LOST = (FailureKind.HOST_OOM, FailureKind.EVICTED, FailureKind.NODE_FAILED, FailureKind.POD_STOPPED)
_ABORTED = (-signal.SIGABRT, 128 + signal.SIGABRT)
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


class OwnEnds:
    """The ends and exceptions of all processes of a job, asked for one of them.

    `errors`: the exceptions that ranks printed by themselves, not as victims. `reports`: what their watchdogs said.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        own = [error for error in reversed(job.facts.errors) if not error.consequence]
        self.errors = {error.rank: error for error in own if error.rank is not None}
        victims = [error for error in job.facts.errors if error.consequence and error.rank not in self.errors]
        self._victims = {error.rank for error in victims}
        self._gave_up = {error.rank for error in victims if error.type not in _ORDERED}
        self.reports = grouped((report.rank, report) for report in job.facts.watchdog)
        self._ends = Ends(job)

    def reported_timeout(self, rank: int) -> bool:
        return any(report.kind in ("timeout", "async_error") for report in self.reports.get(rank, ()))

    @cached_property
    def finished_cleanly(self) -> frozenset[int]:
        """Ranks that exited with status 0, where those are most of the job: their work was done."""
        clean = frozenset(rank for rank, process in self.job.processes.items() if process.exit_status == 0)
        return clean if len(clean) * 2 > len(self.job.ranks) else frozenset()

    def by_itself(self, rank: int, process: Process) -> bool:
        """Whether the process ended of its own."""
        status = process.exit_status
        if status is None:
            return process.state in GONE and self._ends.gone == 1
        if self._after_capture(process) or self._ended_with_the_job(rank, status):
            return False
        if status in EFFECTS:
            return self.raised_like_others(rank, process) or self._before_all_others(rank, process, status)
        if status == 0:
            return self._missed(rank, process) and rank not in self.finished_cleanly
        return not self._taken_down(rank, process, status) and self._among_the_first(rank, process)

    def missed_by_victims(self, rank: int, process: Process) -> bool:
        """Whether those that ended after it did so with an exception that only says that they lost somebody."""
        if process.ended_at_s is None:
            return False
        later = [r for r in self._last_failed if r != rank and self._ends.failed[r] > process.ended_at_s]
        return any(r in self._victims for r in later) and not any(r in self.errors for r in later)

    def _ended_with_the_job(self, rank: int, status: int) -> bool:
        """Whether we ended the job because it hung, and nothing says that this one failed besides."""
        return self._ended_for_the_hang and (status in (*EFFECTS, *_KILLED) or (status > 0 and rank not in self.errors))

    def _after_capture(self, process: Process) -> bool:
        """Whether it ended only after the stall had been noticed and captured."""
        taken = self.job.captured_at_ns
        at_s = process.ended_at_s
        return self.job.reason == "stall" and taken is not None and at_s is not None and at_s * 1e9 > taken

    def _others_run(self, process: Process) -> bool:
        return self._ends.running > is_running(process)

    def _before_all_others(self, rank: int, process: Process, status: int) -> bool:
        """Of an end that is mostly an effect: whether it came while all others were there, and nothing else explains
        it."""
        if status in _ABORTED and not self._aborted_by_runtime.isdisjoint((None, rank)):
            return False
        if self.reported_timeout(rank) or self._causes - {rank} or self._ends.most(status):
            return False
        first_other, _ = self._ends.besides(process)
        at_s = process.ended_at_s
        first = at_s is not None and first_other is not None and at_s + _FIRST_BY_S < first_other
        return first or self._others_run(process)

    def raised_like_others(self, rank: int, process: Process) -> bool:
        """Whether it is gone and had raised what others ended with: its launcher was quicker than its own end."""
        own = self.errors.get(rank) if process.state in GONE else None
        others = [self.errors[other] for other in self._ends.causes if other != rank and other in self.errors]
        return own is not None and any((own.type, own.message) == (each.type, each.message) for each in others)

    def _missed(self, rank: int, process: Process) -> bool:
        """Whether others were still there when it exited with status 0, or ended later because of it."""
        _, last_other = self._ends.besides(process)
        at_s = process.ended_at_s
        later = at_s is not None and last_other is not None and last_other > at_s + _FIRST_BY_S
        return later or self._others_run(process) or self.missed_by_victims(rank, process)

    def _taken_down(self, rank: int, process: Process, status: int) -> bool:
        """Whether somebody else ended it, or it only gave up waiting for somebody else."""
        if (status < 0 or status >= 128) and self._ends.most(status):
            return True  # one hand ended them all
        if process.ended_at_s is None and rank not in self.errors and self._ends.most(status):
            return True  # most gave up in the same way, and nothing says who did so first
        if status > 0 and rank in self._gave_up:
            return True  # its only exception says that it waited for somebody else, or lost somebody
        if status > 0 and rank not in self.errors and self._another_was_lost(rank, process):
            return True  # and nothing says what this one had to complain of
        # If it was there when the hang was noticed, whoever killed it came later.
        return status in _KILLED and self._outlived_the_hang(rank, process.ended_at_s)

    def _another_was_lost(self, rank: int, process: Process) -> bool:
        """Whether the kernel or a scheduler says that it took another, or its node."""
        return any(failure.rank != rank and failure.node != process.node for failure in self._lost)

    def _outlived_the_hang(self, rank: int, at_s: float | None) -> bool:
        """Whether its own watchdog spoke of the hang, before its end where times are known."""
        kinds = ("timeout", "async_error", "status")
        spoke = [report.at_ns for report in self.reports.get(rank, ()) if report.kind in kinds]
        return bool(spoke) and (at_s is None or all(at_ns is None or at_ns / 1e9 < at_s for at_ns in spoke))

    def _among_the_first(self, rank: int, process: Process) -> bool:
        first_other, _ = self._ends.besides(process)
        at_s = process.ended_at_s
        if at_s is None or first_other is None:
            return True
        if rank in self._victims and first_other <= at_s:
            return False  # its only exception says that it lost somebody who was gone before it
        # A launcher's last resort is SIGKILL too, but it comes long after the first end.
        return at_s <= first_other + _FIRST_BY_S

    @cached_property
    def _aborted_by_runtime(self) -> set[int | None]:
        """Ranks, or None for some that no line tells apart, whose runtime says that it ends them for another's sake."""
        return {failure.rank for failure in self.job.facts.failures if failure.effect and failure.explains}

    @cached_property
    def _lost(self) -> list[Failure]:
        """Processes and nodes of which the kernel or a scheduler says that they were taken."""
        return [failure for failure in self.job.facts.failures if failure.kind in _LOST and not failure.effect]

    @cached_property
    def _ended_for_the_hang(self) -> bool:
        return any(failure.detail == AFTER_HANG for failure in self.job.facts.failures)

    @cached_property
    def _causes(self) -> set[int]:
        """Ranks that ended in a way that is not an effect."""
        return {rank for rank in self._ends.causes if rank not in self._gave_up}

    @cached_property
    def _last_failed(self) -> list[int]:
        """Of victims, and of those with an error of their own, the two who failed last."""
        kinds = ([rank for rank in self._ends.failed if rank in known] for known in (self._victims, self.errors))
        return [rank for found in kinds for rank in nlargest(2, found, key=self._ends.failed.__getitem__)]
